#include "torchamp/checkpoint/checkpoint.h"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::List;
using base::StateDict;
using base::Tuple;
using base::Value;

StateDict round_trip(const StateDict& dict) {
  const TemporaryFolder folder;
  save(folder / "a.pt", dict);
  return load(folder / "a.pt");
}

at::Tensor round_trip(const at::Tensor& tensor) {
  StateDict dict;
  dict.set("t", tensor);
  return round_trip(dict).at("t").to_tensor();
}

TEST(Checkpoint, GivesBackEveryKindOfValue) {
  StateDict inner;
  inner.set(int64_t{0}, "zero");
  inner.set(int64_t{-5}, Value());
  inner.set(int64_t{1} << 40, 1);
  StateDict dict;
  dict.set("none", Value());
  dict.set("bools", List{{true, false}});
  dict.set("ints",
           Tuple{{0, 255, 256, 65535, 65536, -1, -128, -129, int64_t{1} << 31, -(int64_t{1} << 31),
                  -(int64_t{1} << 31) - 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max(),
                  std::numeric_limits<int64_t>::min()}});
  dict.set("floats", List{{0.0, -0.0, 1.5, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}});
  dict.set("text", "na\xc3\xafve");
  dict.set("empty", Tuple{{List{}, Tuple{}, StateDict(), ""}});
  dict.set("inner", inner);
  EXPECT_TRUE(same(round_trip(dict), dict));
}

TEST(Checkpoint, GivesBackTensorsOfEveryDtypeBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat,
                                     at::kDouble,
                                     at::kHalf,
                                     at::kBFloat16,
                                     at::kLong,
                                     at::kInt,
                                     at::kShort,
                                     at::kChar,
                                     at::kByte,
                                     at::kBool,
                                     at::kComplexFloat,
                                     at::kComplexDouble,
                                     at::kComplexHalf,
                                     at::kUInt16,
                                     at::kUInt32,
                                     at::kUInt64,
                                     at::kFloat8_e5m2,
                                     at::kFloat8_e4m3fn,
                                     at::kFloat8_e5m2fnuz,
                                     at::kFloat8_e4m3fnuz}) {
    // Every byte pattern of the first bytes, NaNs included, seen through the dtype.
    at::Tensor bytes = torch::arange(64, at::kByte) * 3 + 1;
    if (dtype == at::kBool) bytes = bytes.remainder(2);
    const at::Tensor tensor = bytes.view(dtype);
    const at::Tensor read = round_trip(tensor);
    EXPECT_EQ(read.scalar_type(), dtype);
    EXPECT_TRUE(same(read.view(at::kByte), bytes)) << dtype;
  }
}

TEST(Checkpoint, GivesBackEveryShapeAndStride) {
  const at::Tensor base = torch::arange(24.0F).reshape({2, 3, 4});
  const std::vector<at::Tensor> tensors = {
      torch::tensor(2.5F),
      torch::empty({0}),
      torch::empty({3, 0, 2}),
      base.transpose(0, 2),
      base.select(0, 1).slice(1, 1, 3),
      base.view(-1).slice(0, 1, 24, 5),
      torch::arange(3.0F).reshape({3, 1}).expand({3, 4}),
      torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)};
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor read = round_trip(tensor);
    EXPECT_TRUE(same(read, tensor)) << tensor.sizes();
    EXPECT_EQ(read.strides(), tensor.strides());
    EXPECT_EQ(read.storage_offset(), tensor.storage_offset());
  }
}

TEST(Checkpoint, WritesSharedStoragesOnceAndKeepsThemShared) {
  const at::Tensor weight = torch::rand({1000, 100});
  StateDict dict;
  dict.set("weight", weight);
  dict.set("tied", weight);
  dict.set("row", weight[3]);
  const TemporaryFolder folder;
  save(folder / "a.pt", dict);
  EXPECT_LT(std::filesystem::file_size(folder / "a.pt"), weight.nbytes() + 4096);
  const StateDict read = load(folder / "a.pt");
  EXPECT_TRUE(same(read, dict));
  EXPECT_TRUE(read.at("tied").to_tensor().is_alias_of(read.at("weight").to_tensor()));
  read.at("weight").to_tensor()[3].fill_(7);
  EXPECT_EQ(read.at("row").to_tensor().sum().item<float>(), 700);
}

TEST(Checkpoint, WritesTwoDtypesOfOneStorageApart) {
  const at::Tensor bits = torch::tensor({0x3F800000, 0x40000000}, at::kInt);
  StateDict dict;
  dict.set("bits", bits);
  dict.set("floats", bits.view(at::kFloat));
  const StateDict read = round_trip(dict);
  EXPECT_TRUE(same(read, dict));
  EXPECT_EQ(read.at("floats").to_tensor()[1].item<float>(), 2.0F);
}

TEST(Checkpoint, WritesNoGradientHistoryAndNoLazyConjugation) {
  const at::Tensor parameter = torch::rand({3}, at::requires_grad());
  EXPECT_FALSE(round_trip(parameter * 2).requires_grad());
  const at::Tensor z = torch::complex(torch::rand({3}), torch::rand({3}));
  EXPECT_TRUE(same(round_trip(z.conj()), z.conj()));
  EXPECT_TRUE(same(round_trip(at::imag(z.conj())), at::imag(z.conj()).resolve_neg()));
}

TEST(Checkpoint, WritesAnUndefinedTensorAsNone) {
  StateDict dict;
  dict.set("t", at::Tensor());
  EXPECT_TRUE(round_trip(dict).at("t").is_none());
}

TEST(Checkpoint, EqualStatesGiveEqualFiles) {
  StateDict dict;
  dict.set("t", torch::arange(5));
  const TemporaryFolder folder;
  save(folder / "a.pt", dict);
  const std::string first = read_file(folder / "a.pt");
  save(folder / "a.pt", dict);
  EXPECT_TRUE(read_file(folder / "a.pt") == first);
}

// The file that Python's torch.save wrote for the same values: make_checkpoints.py, "written".
TEST(Checkpoint, WritesThePickleAndArchiveOfTorchSaveByteForByte) {
  const at::Tensor shared = torch::arange(4.0F);
  StateDict weights;
  weights.set("w", shared);
  weights.set("view", shared.slice(0, 1, 3));
  weights.set("half", torch::arange(2.0F).to(at::kHalf));
  weights.set("u16", torch::arange(2).to(at::kUInt16));
  weights.set("scalar", torch::tensor(1.0F));
  weights.set("epoch", "epoch");
  StateDict keys;
  for (int64_t i = 0; i < 300; ++i) keys.set(i, Value());
  List many;
  for (int64_t i = 0; i < 2001; ++i) many.items.emplace_back(i);
  StateDict dict;
  dict.set("epoch", 3);
  dict.set("loss", 0.5);
  dict.set("big", int64_t{1} << 40);
  dict.set("minus", -2);
  dict.set("none", Value());
  dict.set("yes", true);
  dict.set("list", List{{1, "two", List{{3.0}}}});
  dict.set("one", List{{4}});
  dict.set("tuple", Tuple{});
  dict.set("pair", Tuple{{1, 2}});
  dict.set("four", Tuple{{1, 2, 3, 4}});
  dict.set("weights", weights);
  dict.set("keys", keys);
  dict.set("many", many);
  const TemporaryFolder folder;
  save(folder / "written.pt", dict);
  const std::string ours = read_file(folder / "written.pt");
  for (const std::string version : {"2.11.0", "2.15.0"}) {
    const std::string python = read_file(golden("checkpoint/" + version + "/written.pt"));
    // Up to the end of record "version"; then Python adds an id and both write their directory.
    const size_t records = python.find(".data/serialization_id");
    ASSERT_NE(records, std::string::npos);
    const size_t common = python.rfind("PK\x03\x04", records);
    EXPECT_TRUE(ours.substr(0, common) == python.substr(0, common)) << version;
    EXPECT_EQ(ours.substr(common, 4), "PK\x01\x02");
  }
}

void expect_refused(const Value& value, const std::string& text) {
  StateDict inner;
  inner.set("x", List{{0, value}});
  StateDict dict;
  dict.set("outer", inner);
  const TemporaryFolder folder;
  try {
    save(folder / "a.pt", dict);
    FAIL() << "no error for " << text;
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("entry ['outer']['x'][1] " + text), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Checkpoint, NamesTheEntryThatAFileCannotHold) {
  expect_refused(torch::eye(2).to_sparse(), "is a tensor without a plain storage");
  expect_refused(torch::empty({2}, at::kMeta), "is a tensor without a plain storage");
  expect_refused(at::quantize_per_tensor(torch::rand({2}), 1.0, 0, at::kQUInt8),
                 "is a tensor without a plain storage");
  expect_refused("\xff", "holds text that is not UTF-8");
  expect_refused("\xc0\x80", "holds text that is not UTF-8");
  expect_refused("\xe2\x82", "holds text that is not UTF-8");
}

TEST(Checkpoint, RefusesATreeThatIsTooDeep) {
  Value deep = 1;
  for (int i = 0; i < 600; ++i) deep = List{{deep}};
  StateDict dict;
  dict.set("deep", deep);
  const TemporaryFolder folder;
  EXPECT_THROW(save(folder / "a.pt", dict), CheckpointError);
}

TEST(Checkpoint, HoldsManyEntriesInAFewSeconds) {
  StateDict dict;
  for (int64_t i = 0; i < 100000; ++i) dict.set("key" + std::to_string(i), i);
  EXPECT_TRUE(same(round_trip(dict), dict));
}

}  // namespace
}  // namespace torchamp::checkpoint
