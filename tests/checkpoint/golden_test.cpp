// Files that Python's torch.save wrote (tests/golden/checkpoint/make_checkpoints.py), read here.

#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {
namespace {

using base::BigInt;
using base::Bytes;
using base::CheckpointError;
using base::List;
using base::Set;
using base::StateDict;
using base::Tuple;
using base::Value;

// Oldest first; dtypes came one after another.
constexpr std::array kVersions = {"1.13.1", "2.0.1", "2.2.2",  "2.4.1",
                                  "2.6.0",  "2.9.1", "2.11.0", "2.15.0"};

enum class Formats { kZip, kLegacy, kBoth };

// Reads a file in every way and hands each value to `expect`, with the place of the version that
// wrote it: of every version, in the zip format and the one before 1.6, read and mapped.
template <typename Expect>
void for_each_file(const std::string& name, Formats formats, Expect expect) {
  for (size_t version = 0; version < kVersions.size(); ++version) {
    for (const bool is_legacy : {false, true}) {
      if (is_legacy ? formats == Formats::kZip : formats == Formats::kLegacy) continue;
      const std::string path = golden(std::string("checkpoint/") + kVersions[version] +
                                      (is_legacy ? "/legacy/" : "/") + name + ".pt");
      for (const bool mmap : {false, true}) {
        SCOPED_TRACE(path + (mmap ? ", mapped" : ""));
        ASSERT_NO_THROW(expect(load(path, {.mmap = mmap}), version, is_legacy));
      }
      EXPECT_NO_THROW(verify(path)) << path;
    }
  }
}

void expect_same(const StateDict& read, const StateDict& expected) {
  EXPECT_EQ(read.size(), expected.size());
  for (const auto& [key, value] : expected.entries()) {
    const Value* found = read.find(key);
    EXPECT_TRUE(found != nullptr && same(*found, value)) << base::to_string(key);
  }
  EXPECT_TRUE(same(read, expected));  // the order, too
}

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

TEST(GoldenCheckpoint, ReadsABareStateDictWithMetadata) {
  for_each_file("model", Formats::kBoth, [](const StateDict& dict, size_t /*version*/, bool) {
    expect_same(dict, expected_model());
  });
}

TEST(GoldenCheckpoint, ReadsATrainingCheckpoint) {
  for_each_file("training", Formats::kBoth, [](const StateDict& dict, size_t version, bool) {
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
    EXPECT_EQ(group.contains("fused"), version > 0);
    const StateDict& first = optimizer.at("state").to_dict().at(int64_t{0}).to_dict();
    EXPECT_EQ(first.at("step").to_tensor().item<float>(), 1.0F);
  });
}

// The gradients' -2, -1, 0, 1, 2, -2, ..., to be multiplied.
at::Tensor gradient_pattern(at::IntArrayRef shape) {
  return (torch::arange(c10::multiply_integers(shape)).remainder(5) - 2)
      .reshape(shape)
      .to(at::kDouble);
}

// Within a few roundings of three steps in float32.
void expect_near(const StateDict& state, const char* name, const at::Tensor& expected) {
  const at::Tensor& read = state.at(name).to_tensor();
  ASSERT_EQ(read.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::allclose(read.to(at::kDouble), expected, 8 * 0x1p-24, 0.0)) << name;
}

TEST(GoldenCheckpoint, ReadsAdamStatesAfterThreeSteps) {
  // exp_avg and exp_avg_sq of gradients g, 2g, 3g: the sums of (1 - b) b^(3-k) k g and (k g)^2.
  constexpr double kFirst = 0.1 * (0.81 * 1 + 0.9 * 2 + 3);
  constexpr double kSecond = 0.001 * (0.998001 * 1 + 0.999 * 4 + 9);
  for (const char* name : {"adamw", "adam"}) {
    for_each_file(name, Formats::kZip, [&](const StateDict& dict, size_t /*version*/, bool) {
      EXPECT_EQ(dict.at("model").to_dict().size(), 7U);
      const StateDict& optimizer = dict.at("optimizer").to_dict();
      const StateDict& states = optimizer.at("state").to_dict();
      ASSERT_EQ(states.size(), 4U);
      for (int64_t i = 0; i < 4; ++i) {
        const StateDict& state = states.at(i).to_dict();
        const at::Tensor g =
            gradient_pattern(i == 0 ? at::IntArrayRef({2, 3}) : at::IntArrayRef({2})) / 8;
        EXPECT_TRUE(same(state.at("step").to_tensor(), torch::tensor(3.0F)));
        EXPECT_EQ(state.contains("max_exp_avg_sq"), name == std::string("adam"));
        if (name == std::string("adam") && i < 2) continue;  // weight decay is in the gradient
        expect_near(state, "exp_avg", kFirst * g);
        expect_near(state, "exp_avg_sq", kSecond * g * g);
      }
      const std::vector<Value>& groups = optimizer.at("param_groups").to_items();
      if (name == std::string("adamw")) {
        EXPECT_EQ(groups.at(0).to_dict().at("weight_decay").to_double(), 0.01);
        EXPECT_EQ(groups.at(0).to_dict().at("params").to_items().size(), 4U);
        return;
      }
      EXPECT_EQ(groups.at(0).to_dict().at("weight_decay").to_double(), 0.25);
      EXPECT_EQ(groups.at(1).to_dict().at("lr").to_double(), 0.0625);
      EXPECT_TRUE(groups.at(1).to_dict().at("amsgrad").to_bool());
      EXPECT_EQ(groups.at(1).to_dict().at("params").to_items().at(1).to_int(), 3);
    });
  }
}

TEST(GoldenCheckpoint, ReadsSgdStatesAfterThreeSteps) {
  // (g / 2 + 2 g) / 2 + 3 g with g in eighths: exact.
  for_each_file("sgd", Formats::kZip, [](const StateDict& dict, size_t /*version*/, bool) {
    const StateDict& states = dict.at("optimizer").to_dict().at("state").to_dict();
    ASSERT_EQ(states.size(), 4U);
    EXPECT_TRUE(same(states.at(int64_t{0}).to_dict().at("momentum_buffer").to_tensor(),
                     (gradient_pattern({2, 3}) * (4.25 / 8)).to(at::kFloat)));
    const StateDict& group =
        dict.at("optimizer").to_dict().at("param_groups").to_items().at(0).to_dict();
    EXPECT_TRUE(group.at("dampening").is<int64_t>());
    EXPECT_EQ(group.at("dampening").to_double(), 0.0);
  });
}

TEST(GoldenCheckpoint, ReadsGradScalerStates) {
  StateDict on;
  on.set("scale", 8.0);
  on.set("growth_factor", 2.0);
  on.set("backoff_factor", 0.5);
  on.set("growth_interval", 3);
  on.set("_growth_tracker", 2);
  for_each_file("scaler", Formats::kZip, [&](const StateDict& dict, size_t version, bool) {
    EXPECT_TRUE(dict.at("off").to_dict().empty());
    if (version < 3) return;  // a scaler on CPUs came with 2.3
    EXPECT_TRUE(same(dict.at("on").to_dict(), on));
  });
}

StateDict expected_values(const Value& nan) {
  constexpr auto kInf = std::numeric_limits<double>::infinity();
  StateDict expected;
  expected.set("none", Value());
  expected.set("bools", List{{true, false}});
  constexpr int64_t kTwo31 = int64_t{1} << 31;
  expected.set("ints", Tuple{{0, 255, 256, 65535, 65536, -1, -129, kTwo31 - 1, kTwo31, -kTwo31,
                              -kTwo31 - 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}});
  expected.set("floats", List{{0.0, -0.0, 1.5, 1e300, kInf, -kInf, nan}});
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
  return expected;
}

TEST(GoldenCheckpoint, ReadsEveryKindOfValue) {
  for_each_file("values", Formats::kBoth, [](const StateDict& dict, size_t version, bool legacy) {
    const std::vector<Value>& floats = dict.at("floats").to_items();
    ASSERT_EQ(floats.size(), 7U);
    EXPECT_TRUE(std::isnan(floats[6].to_double()));
    StateDict expected = expected_values(floats[6]);
    if (version >= 6 && !legacy) {
      List many;
      for (int64_t i = 0; i < 2001; ++i) many.items.emplace_back(i);
      expected.set("many", many);
    }
    expect_same(dict, expected);
  });
}

// `sign` is 0 or -1; bytes from the lowest, the sign's after them up to `size`.
BigInt big(std::initializer_list<unsigned> bytes, size_t size, int sign = 0) {
  BigInt number;
  for (const unsigned byte : bytes) number.bytes.push_back(static_cast<char>(byte));
  number.bytes.resize(size, static_cast<char>(sign));
  return number;
}

TEST(GoldenCheckpoint, ReadsRarerKindsOfValue) {
  // 10^30 = 0xC9F2C9CD04674EDEA40000000.
  const auto ten30 = big({0, 0, 0, 0x40, 0xEA, 0xED, 0x74, 0x46, 0xD0, 0x9C, 0x2C, 0x9F, 0x0C}, 13);
  const auto minus_ten30 =
      big({0, 0, 0, 0xC0, 0x15, 0x12, 0x8B, 0xB9, 0x2F, 0x63, 0xD3, 0x60, 0xF3}, 13);
  BigInt two2040 = big({}, 256);
  two2040.bytes[255] = 1;
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes.push_back(static_cast<char>(i));
  StateDict expected;
  expected.set("big", List{{big({0, 0, 0, 0, 0, 0, 0, 0x80}, 9),
                            big({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F}, 9, -1), ten30,
                            minus_ten30, big({0, 0, 0, 0, 0, 0, 0, 0, 1}, 9), two2040}});
  expected.set("complex", c10::complex<double>(1.5, -2.0));
  expected.set("bytes", List{{Bytes{""}, Bytes{"abc"}, Bytes{all_bytes}}});
  expected.set("bytearray", Bytes{std::string("\0\xffz", 3)});
  expected.set("set", Set{{1, 2, 3}});
  expected.set("empty_set", Set{});
  expected.set("frozenset", Set{{7}});
  expected.set("set_of_text", Set{{"one"}});
  expected.set("dtypes", List{{at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool,
                               at::kComplexFloat}});
  expected.set("devices", List{{at::Device("cpu"), at::Device("cuda"), at::Device("cuda:1")}});
  expected.set("sizes", List{{Tuple{}, Tuple{{4}}}});
  StateDict counts;
  counts.set("a", 1);
  expected.set("defaultdict", counts);
  StateDict of_lists;
  of_lists.set(int64_t{3}, List{{1, 2}});
  expected.set("of_lists", of_lists);
  StateDict without_default;
  without_default.set("z", 0);
  expected.set("without_default", without_default);
  StateDict counter;
  counter.set("a", 2);
  counter.set("b", 1);
  expected.set("counter", counter);
  for_each_file("kinds", Formats::kBoth, [&](const StateDict& dict, size_t /*version*/, bool) {
    expect_same(dict, expected);
  });
}

TEST(GoldenCheckpoint, ReadsNumpyScalarsAsNumbers) {
  StateDict expected;
  expected.set("float64", 1.5);
  expected.set("float32", static_cast<double>(0.1F));
  expected.set("float16", -2.5);
  expected.set("int64", std::numeric_limits<int64_t>::min());
  expected.set("int32", -5);
  expected.set("int16", 300);
  expected.set("int8", -128);
  expected.set("uint8", 255);
  expected.set("uint16", 65535);
  expected.set("uint32", (int64_t{1} << 32) - 1);
  expected.set("uint64", big({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, 9));
  expected.set("true", true);
  expected.set("false", false);
  for_each_file("numpy_scalars", Formats::kBoth, [&](StateDict dict, size_t /*version*/, bool) {
    EXPECT_TRUE(std::isnan(dict.at("nan").to_double()));
    expected.set("nan", dict.at("nan"));
    expected.set("complex128", c10::complex<double>(1.0, -2.0));
    expected.set("complex64", c10::complex<double>(0.5, 3.0));
    expected.set("big_endian", 1.5);
    expect_same(dict, expected);
  });
}

TEST(GoldenCheckpoint, ReadsNumpyArraysAsTensors) {
  for_each_file("numpy_arrays", Formats::kBoth, [](const StateDict& dict, size_t, bool) {
    StateDict expected;
    expected.set("matrix", ramp({2, 3}));
    expected.set("fortran", ramp({2, 3}));
    expected.set("ints", torch::arange(3));
    expected.set("scalar", torch::tensor(2.5, at::kDouble));
    expected.set("empty", torch::zeros({0, 2}, at::kDouble));
    expected.set("bools", torch::tensor({true, false}));
    expect_same(dict, expected);
  });
}

TEST(GoldenCheckpoint, ReadsTensorsOfEveryDtype) {
  const at::Tensor three = ramp({3});
  const at::Tensor z = at::complex(three, -three);
  struct Dtype {
    const char* name;
    at::ScalarType type;
    size_t since = 0;  // the first of kVersions that saves it
  };
  const std::vector<Dtype> dtypes = {{"float32", at::kFloat},
                                     {"float64", at::kDouble},
                                     {"float16", at::kHalf},
                                     {"bfloat16", at::kBFloat16},
                                     {"int64", at::kLong},
                                     {"int32", at::kInt},
                                     {"int16", at::kShort},
                                     {"int8", at::kChar},
                                     {"uint8", at::kByte},
                                     {"float8_e5m2", at::kFloat8_e5m2, 2},
                                     {"float8_e4m3fn", at::kFloat8_e4m3fn, 2},
                                     {"uint16", at::kUInt16, 4},
                                     {"uint32", at::kUInt32, 4},
                                     {"uint64", at::kUInt64, 4}};
  for_each_file("tensors", Formats::kBoth, [&](const StateDict& dict, size_t version, bool legacy) {
    for (const auto& [name, type, since] : dtypes) {
      ASSERT_EQ(dict.contains(name), version >= since && (since == 0 || !legacy)) << name;
      if (!dict.contains(name)) continue;
      EXPECT_TRUE(same(dict.at(name).to_tensor(), three.to(type))) << name;
    }
    EXPECT_TRUE(same(dict.at("bool").to_tensor(), torch::tensor({false, true, true})));
    EXPECT_TRUE(same(dict.at("complex64").to_tensor(), z));
    EXPECT_TRUE(same(dict.at("complex128").to_tensor(), z.to(at::kComplexDouble)));
    ASSERT_EQ(dict.contains("complex32"), version >= 3 && !legacy);
    if (!dict.contains("complex32")) return;
    EXPECT_TRUE(same(dict.at("complex32").to_tensor(), z.to(at::kComplexHalf)));
  });
}

void expect_strided(const StateDict& dict, const std::string& name, const at::Tensor& expected) {
  const at::Tensor read = dict.at(name).to_tensor();
  EXPECT_TRUE(same(read, expected)) << name;
  EXPECT_EQ(read.strides(), expected.strides()) << name;
  EXPECT_FALSE(read.requires_grad()) << name;
}

TEST(GoldenCheckpoint, ReadsTensorsOfEveryShapeAndStride) {
  const at::Tensor base = ramp({2, 3, 4});
  const at::Tensor three = ramp({3});
  for_each_file("tensors", Formats::kBoth, [&](const StateDict& dict, size_t version, bool) {
    expect_strided(dict, "scalar", torch::tensor(2.5F));
    expect_strided(dict, "empty", torch::empty({0}));
    expect_strided(dict, "empty_2d", torch::empty({3, 0}));
    expect_strided(dict, "parameter", ramp({2}));
    expect_strided(dict, "base", base);
    expect_strided(dict, "view", base.select(0, 1).slice(1, 1, 3));
    expect_strided(dict, "transposed", base.transpose(0, 2));
    expect_strided(dict, "step", base.reshape({-1}).slice(0, 1, 24, 5));
    expect_strided(dict, "expanded", ramp({3, 1}).expand({3, 4}));
    expect_strided(dict, "channels_last",
                   ramp({1, 2, 3, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    const bool keeps_bits = version > 0;  // 1.13 lost that a tensor is conjugated or negated
    EXPECT_TRUE(same(dict.at("conj").to_tensor(), at::complex(three, keeps_bits ? three : -three)));
    EXPECT_TRUE(same(dict.at("neg").to_tensor().resolve_neg(), keeps_bits ? -three : three));
    EXPECT_TRUE(std::isnan(dict.at("nan").to_tensor()[0].item<float>()));
    EXPECT_TRUE(dict.at("view").to_tensor().is_alias_of(dict.at("base").to_tensor()));
    EXPECT_TRUE(dict.at("same").to_tensor().is_same(dict.at("float32").to_tensor()));
  });
}

TEST(GoldenCheckpoint, ReadsWhatPythonHangsOnTensors) {
  const at::Tensor values = torch::tensor({1.0F, 2.0F, 0.5F});
  for_each_file("more_tensors", Formats::kBoth, [&](const StateDict& dict, size_t, bool legacy) {
    expect_strided(dict, "with_attribute", ramp({2}));
    expect_strided(dict, "parameter_with_attribute", ramp({2}));
    const std::vector<Value>& tied = dict.at("tied").to_items();
    EXPECT_TRUE(same(tied.at(0).to_tensor(), ramp({2}).to(at::kBFloat16)));
    EXPECT_TRUE(tied.at(1).to_tensor().is_same(tied.at(0).to_tensor()));
    expect_strided(dict, "overlapping", ramp({4}).as_strided({2, 3}, {1, 1}));
    expect_strided(dict, "bits", ramp({4}).view(at::kInt));
    const std::vector<std::pair<const char*, at::ScalarType>> later = {
        {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
        {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
        {"float8_e8m0fnu", at::kFloat8_e8m0fnu}};
    size_t num_later = 0;
    for (const auto& [name, type] : later) {
      if (!dict.contains(name)) continue;
      ++num_later;
      EXPECT_TRUE(same(dict.at(name).to_tensor(), values.to(type))) << name;
    }
    EXPECT_EQ(dict.size(), 5U + num_later);
    EXPECT_TRUE(num_later == 0 || !legacy);
  });
}

TEST(GoldenCheckpoint, ReadsLaterPickleProtocols) {
  const at::Tensor base = ramp({2, 3, 4});
  StateDict expected;
  expected.set("text", "na\xc3\xafve");
  expected.set("long", std::string(300, 'x'));
  expected.set("bytes", Bytes{"abc"});
  expected.set("big", big({0, 0, 0, 0, 0, 0, 0, 0, 0x40}, 9));
  expected.set("set", Set{{1, 2}});
  expected.set("frozen", Set{{3}});
  expected.set("list", List{{1, 2.5, Value(), true}});
  expected.set("pair", Tuple{{1, "two"}});
  StateDict inner;
  inner.set(int64_t{2}, 3);
  StateDict outer;
  outer.set(int64_t{1}, inner);
  expected.set("dict", outer);
  StateDict ordered;
  ordered.set("a", 1);
  expected.set("ordered", ordered);
  expected.set("weight", ramp({2, 2}));
  expected.set("view", base.select(0, 0).select(0, 1));
  expected.set("base", base);
  expected.set("u8", ramp({3}).to(at::kByte));
  StateDict lists;
  lists.set("a", List{{1}});
  expected.set("default", lists);
  expected.set("dtype", at::kHalf);
  expected.set("size", Tuple{{5}});
  for (const char* name : {"protocol3", "protocol4", "protocol5"}) {
    const Formats formats = name == std::string("protocol4") ? Formats::kBoth : Formats::kZip;
    for_each_file(name, formats,
                  [&](const StateDict& dict, size_t, bool) { expect_same(dict, expected); });
  }
}

// tests/golden/checkpoint/make_old_checkpoints.py: as versions wrote that cannot be installed now.
class OldCheckpoint : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, OldCheckpoint,
                         testing::Values("zip_1_5", "zip_1_6", "zip_later", "legacy_0_4",
                                         "legacy_big_endian", "python2_0_3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(OldCheckpoint, IsReadValueByValue) {
  StateDict expected;
  StateDict model;
  model.set("weight", ramp({2, 3}));
  model.set("transposed", ramp({2, 3}).t());
  model.set("view", ramp({6}).slice(0, 2, 5));
  expected.set("model", model);
  expected.set("double", torch::tensor({0.5, -1.5, 1e300}, at::kDouble));
  expected.set("half", torch::tensor({-2.0F}).to(at::kHalf));
  expected.set("long", torch::tensor(int64_t{1} << 40));
  expected.set("bool", torch::tensor({true, false, true}));
  expected.set("epoch", 300);
  expected.set("seed", int64_t{1} << 40);
  expected.set("loss", 0.25);
  expected.set("name", "old");
  expected.set("text", "na\xc3\xafve");
  StateDict group;
  group.set("lr", 0.1);
  group.set("betas", Tuple{{0.9, 0.999}});
  group.set("params", List{{0, 1}});
  expected.set("groups", List{{group}});
  StateDict state;
  state.set(int64_t{0}, Value());
  state.set(int64_t{94081467264256}, true);
  expected.set("state", state);

  const std::string path = golden(std::string("checkpoint/old/") + GetParam() + ".pt");
  for (const bool mmap : {false, true}) {
    const StateDict read = load(path, {.mmap = mmap});
    expect_same(read, expected);
    const StateDict& read_model = read.at("model").to_dict();
    EXPECT_TRUE(read_model.at("view").to_tensor().is_alias_of(read_model.at("weight").to_tensor()));
  }
  EXPECT_NO_THROW(verify(path));
}

struct Refused {
  const char* file;
  const char* text;
};

class RefusedCheckpoint : public testing::TestWithParam<Refused> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds, RefusedCheckpoint,
    testing::Values(
        Refused{"2.15.0/refused/sparse",
                "entry ['sparse'] is a torch._utils._rebuild_sparse_tensor;"},
        Refused{"2.15.0/refused/quantized",
                "entry ['quantized'] is a torch._utils._rebuild_qtensor;"},
        Refused{"2.15.0/refused/tuple_key",
                "the file's value has a key that is a tuple; str and int keys"},
        Refused{"2.15.0/refused/tensor", "the file holds a Tensor; a dict is expected"},
        Refused{"2.15.0/refused/path", "entry ['path'] is a pathlib.PurePosixPath;"},
        Refused{"2.15.0/refused/deque", "entry ['recent'] is a collections.deque;"},
        Refused{"2.15.0/refused/namespace", "entry ['args'] is an argparse.Namespace;"},
        Refused{"2.15.0/refused/module", "the file's value is a torch.nn.modules.linear.Linear;"},
        Refused{"2.15.0/refused/script", "is a TorchScript program"},
        Refused{"old/refused/big_endian", "the file was written on a big-endian machine;"},
        Refused{"old/refused/compressed", "is compressed"}, Refused{"old/refused/tar", "tar"}),
    [](const auto& info) {
      const std::string name = info.param.file;
      return name.substr(name.rfind('/') + 1) + "_" + name.substr(0, name.find_first_of("./"));
    });

TEST_P(RefusedCheckpoint, IsNamedByEntryAndKind) {
  const std::string path = golden("checkpoint/" + std::string(GetParam().file) + ".pt");
  for (const bool mmap : {false, true}) {
    try {
      load(path, {.mmap = mmap});
      FAIL() << "no error";
    } catch (const CheckpointError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(GetParam().text), std::string::npos) << text;
      EXPECT_NE(text.find(path), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace torchamp::checkpoint
