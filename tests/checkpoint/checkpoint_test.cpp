#include "torchamp/checkpoint/checkpoint.h"

#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/temporary_folder.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::List;
using base::StateDict;
using base::Tuple;
using base::Value;

TEST(Checkpoint, GivesBackEveryKindOfValue) {
  const TemporaryFolder folder;
  StateDict inner;
  inner.set(int64_t{0}, "zero");
  inner.set(int64_t{-5}, Value());
  StateDict dict;
  dict.set("none", Value());
  dict.set("bools", List{{true, false}});
  dict.set("ints", Tuple{{0, 255, 256, 65535, 65536, -1, int64_t{1} << 40,
                          std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(),
                          int64_t{-129}}});
  dict.set("floats", List{{0.0, -0.0, 1.5, std::numeric_limits<double>::infinity()}});
  dict.set("text", "na\xc3\xafve");
  dict.set("empty", Tuple{{List{}, Tuple{}, StateDict(), ""}});
  dict.set("inner", inner);
  save(folder / "a.pt", dict);
  const StateDict read = load(folder / "a.pt");
  EXPECT_TRUE(same(read, dict));
}

}  // namespace
}  // namespace torchamp::checkpoint
