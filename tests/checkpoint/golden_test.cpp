// Files that Python's torch.save wrote (tests/golden/checkpoint/make_checkpoints.py), read here.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::List;
using base::StateDict;
using base::Tuple;
using base::Value;

class GoldenCheckpoint : public testing::TestWithParam<std::string> {
 protected:
  StateDict read(const std::string& name) const {
    return load(golden("checkpoint/" + GetParam() + "/" + name + ".pt"));
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, GoldenCheckpoint, testing::Values("2.11.0", "2.15.0"),
                         [](const auto& info) {
                           return info.param == "2.11.0" ? std::string("v2_11")
                                                         : std::string("v2_15");
                         });

at::Tensor ramp(at::IntArrayRef shape) {
  return torch::arange(static_cast<double>(c10::multiply_integers(shape)), at::kFloat)
      .reshape(shape);
}

StateDict expected_model() {
  StateDict dict;
  dict.set("0.weight", ramp({2, 3}) / 8);
  dict.set("0.bias", ramp({2}) / 8 + 1);
  dict.set("1.weight", ramp({2}) / 8 + 2);
  dict.set("1.bias", ramp({2}) / 8 + 3);
  dict.set("1.running_mean", torch::zeros({2}));
  dict.set("1.running_var", torch::ones({2}));
  dict.set("1.num_batches_tracked", torch::tensor(int64_t{7}));
  return dict;
}

TEST_P(GoldenCheckpoint, ReadsABareStateDictWithMetadata) {
  EXPECT_TRUE(same(read("model"), expected_model()));
}

TEST_P(GoldenCheckpoint, ReadsATrainingCheckpoint) {
  const StateDict dict = read("training");
  EXPECT_EQ(dict.at("epoch").to_int(), 3);
  EXPECT_EQ(dict.at("loss").to_double(), 0.25);  // a tensor in the file
  const StateDict& scaler = dict.at("scaler_state_dict").to_dict();
  EXPECT_EQ(scaler.at("scale").to_double(), 65536.0);
  EXPECT_EQ(scaler.at("_growth_tracker").to_int(), 1);
  EXPECT_EQ(dict.at("model_state_dict").to_dict().size(), 7U);
  const StateDict& optimizer = dict.at("optimizer_state_dict").to_dict();
  const StateDict& group = optimizer.at("param_groups").to_items().at(0).to_dict();
  EXPECT_EQ(group.at("lr").to_double(), 0.125);  // a tensor in the file
  EXPECT_TRUE(group.at("betas").is<Tuple>());
  EXPECT_TRUE(group.at("fused").is_none());
  const StateDict& first = optimizer.at("state").to_dict().at(int64_t{0}).to_dict();
  EXPECT_EQ(first.at("step").to_tensor().item<float>(), 1.0F);
}

TEST_P(GoldenCheckpoint, ReadsEveryKindOfValue) {
  constexpr auto kInf = std::numeric_limits<double>::infinity();
  const StateDict dict = read("values");
  StateDict expected;
  expected.set("none", Value());
  expected.set("bools", List{{true, false}});
  constexpr int64_t kTwo31 = int64_t{1} << 31;
  expected.set("ints", Tuple{{0, 255, 256, 65535, 65536, -1, -129, kTwo31 - 1, kTwo31, -kTwo31,
                              -kTwo31 - 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}});
  const std::vector<Value>& floats = dict.at("floats").to_items();
  ASSERT_EQ(floats.size(), 7U);
  EXPECT_TRUE(std::isnan(floats[6].to_double()));
  expected.set("floats", List{{0.0, -0.0, 1.5, 1e300, kInf, -kInf, floats[6]}});
  expected.set("text", "na\xc3\xafve \xf0\x9f\x98\x80");
  expected.set("empty", Tuple{{Tuple{}, List{}, StateDict(), "", StateDict()}});
  StateDict b;
  b.set("b", Tuple{{1, List{{2, Tuple{{3}}}}}});
  StateDict nested;
  nested.set("a", List{{b}});
  expected.set("nested", nested);
  expected.set(int64_t{5}, "int key");
  StateDict minus7;
  minus7.set(int64_t{1} << 40, 1);
  expected.set(int64_t{-7}, minus7);
  StateDict ordered;
  ordered.set("z", 1);
  ordered.set("a", 2);
  expected.set("ordered", ordered);
  expected.set("size", Tuple{{2, 3}});
  expected.set("one", Tuple{{1}});
  expected.set("two", Tuple{{1, 2}});
  expected.set("three", Tuple{{1, 2, 3}});
  expected.set("four", Tuple{{1, 2, 3, 4}});
  expected.set("shared", List{{List{{1}}, List{{1}}}});
  List many;
  for (int64_t i = 0; i < 2001; ++i) many.items.emplace_back(i);
  expected.set("many", many);
  EXPECT_TRUE(same(dict, expected));
}

TEST_P(GoldenCheckpoint, ReadsTensorsOfEveryDtype) {
  const StateDict dict = read("tensors");
  const at::Tensor three = ramp({3});
  const at::Tensor z = at::complex(three, -three);
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},
      {"int32", at::kInt},
      {"int16", at::kShort},
      {"int8", at::kChar},
      {"uint8", at::kByte},
      {"uint16", at::kUInt16},
      {"uint32", at::kUInt32},
      {"uint64", at::kUInt64},
      {"float8_e5m2", at::kFloat8_e5m2},
      {"float8_e4m3fn", at::kFloat8_e4m3fn}};
  for (const auto& [name, dtype] : dtypes) {
    EXPECT_TRUE(same(dict.at(name).to_tensor(), three.to(dtype))) << name;
  }
  EXPECT_TRUE(same(dict.at("bool").to_tensor(), torch::tensor({false, true, true})));
  EXPECT_TRUE(same(dict.at("complex64").to_tensor(), z));
  EXPECT_TRUE(same(dict.at("complex128").to_tensor(), z.to(at::kComplexDouble)));
  EXPECT_TRUE(same(dict.at("complex32").to_tensor(), z.to(at::kComplexHalf)));
}

TEST_P(GoldenCheckpoint, ReadsTensorsOfEveryShapeAndStride) {
  const StateDict dict = read("tensors");
  const at::Tensor base = ramp({2, 3, 4});
  const at::Tensor three = ramp({3});
  const auto expect = [&](const std::string& name, const at::Tensor& expected) {
    const at::Tensor read = dict.at(name).to_tensor();
    EXPECT_TRUE(same(read, expected)) << name;
    EXPECT_EQ(read.strides(), expected.strides()) << name;
    EXPECT_FALSE(read.requires_grad()) << name;
  };
  expect("scalar", torch::tensor(2.5F));
  expect("empty", torch::empty({0}));
  expect("empty_2d", torch::empty({3, 0}));
  expect("parameter", ramp({2}));
  expect("base", base);
  expect("view", base.select(0, 1).slice(1, 1, 3));
  expect("transposed", base.transpose(0, 2));
  expect("step", base.reshape({-1}).slice(0, 1, 24, 5));
  expect("expanded", ramp({3, 1}).expand({3, 4}));
  expect("channels_last", ramp({1, 2, 3, 2}).contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(same(dict.at("conj").to_tensor(), at::complex(three, three)));
  EXPECT_TRUE(same(dict.at("neg").to_tensor().resolve_neg(), -three));
  EXPECT_TRUE(std::isnan(dict.at("nan").to_tensor()[0].item<float>()));
  EXPECT_TRUE(dict.at("view").to_tensor().is_alias_of(dict.at("base").to_tensor()));
  EXPECT_TRUE(dict.at("same").to_tensor().is_same(dict.at("float32").to_tensor()));
}

struct Refused {
  const char* file;
  const char* text;
};

class RefusedCheckpoint : public testing::TestWithParam<Refused> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds, RefusedCheckpoint,
    testing::Values(Refused{"sparse", "entry ['sparse'] is a torch._utils._rebuild_sparse_tensor;"},
                    Refused{"quantized", "entry ['quantized'] is a torch._utils._rebuild_qtensor;"},
                    Refused{"tuple_key",
                            "the file's value has a key that is a tuple; str and int keys"},
                    Refused{"tensor", "the file holds a Tensor; a dict is expected"},
                    Refused{"path", "entry ['path'] is a pathlib.PurePosixPath;"},
                    Refused{"deque", "entry ['recent'] is a collections.deque;"},
                    Refused{"script", "is a TorchScript program"}),
    [](const auto& info) { return std::string(info.param.file); });

TEST_P(RefusedCheckpoint, IsNamedByEntryAndKind) {
  const std::string path =
      golden("checkpoint/2.15.0/refused/" + std::string(GetParam().file) + ".pt");
  try {
    load(path);
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(GetParam().text), std::string::npos) << text;
    EXPECT_NE(text.find(path), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace torchamp::checkpoint
