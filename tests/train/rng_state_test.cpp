#include "torchamp/train/rng_state.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::train {
namespace {

using base::CheckpointError;
using base::StateDict;

TEST(RngState, GivesTheSameNumbersAgainThroughAFile) {
  torch::manual_seed(3);
  torch::randn({5});  // leaves half a pair of normal numbers behind
  const TemporaryFolder folder;
  StateDict dict;
  dict.set("rng", rng_state_dict());
  checkpoint::save(folder / "a.pt", dict);
  const at::Tensor normal = torch::randn({101});
  const at::Tensor order = torch::randperm(1000);
  torch::manual_seed(4);
  load_rng_state_dict(checkpoint::load(folder / "a.pt").at("rng").to_dict());
  EXPECT_TRUE(same(torch::randn({101}), normal));
  EXPECT_TRUE(same(torch::randperm(1000), order));
}

TEST(RngState, HoldsAStateForEveryCudaDevice) {
  const StateDict dict = rng_state_dict();
  EXPECT_EQ(dict.at("cuda").to_items().size(),
            torch::cuda::is_available() ? torch::cuda::device_count() : 0U);
}

// Python's torch.cuda.get_rng_state_all() of a machine with more devices than this one.
TEST(RngState, LeavesOutDevicesThatAreNotHere) {
  torch::manual_seed(6);
  StateDict dict = rng_state_dict();
  const at::Tensor expected = torch::randn({5});
  base::List cuda = base::List{dict.at("cuda").to_items()};
  for (int i = 0; i < 3; ++i) cuda.items.emplace_back(torch::zeros({16}, at::kByte));
  dict.set("cuda", std::move(cuda));
  load_rng_state_dict(dict);
  EXPECT_TRUE(same(torch::randn({5}), expected));
}

TEST(RngState, RefusesOtherTensorsAndChangesNothing) {
  torch::manual_seed(5);
  const StateDict before = rng_state_dict();
  StateDict dict;
  dict.set("cpu", torch::zeros({16}, at::kByte));
  EXPECT_THROW(load_rng_state_dict(dict), CheckpointError);
  dict.set("cpu", torch::zeros({5056}, at::kFloat));
  EXPECT_THROW(load_rng_state_dict(dict), CheckpointError);
  dict.set("cpu", torch::full({5056}, 255, at::kByte));  // the right size, an impossible content
  EXPECT_THROW(load_rng_state_dict(dict), CheckpointError);
  dict.set("cpu", 1);
  EXPECT_THROW(load_rng_state_dict(dict), CheckpointError);
  EXPECT_TRUE(same(rng_state_dict(), before));
}

}  // namespace
}  // namespace torchamp::train
