// The CUDA kernels, run on the host by the emulated runtime, against the scalar CPU kernels: the
// same bytes for every storage, length and alignment, where the order of a sum plays no part.

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "cuda/arrays.h"
#include "cuda/emulated/step_kernels.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/kernels/formula/clip.h"
#include "torchamp/kernels/formula/power.h"

namespace cuda = torchamp::kernels::cuda;
using namespace torchamp::kernels;  // NOLINT: the test is about nothing else
using test_arrays::Array;

namespace {

const KernelTable& scalar() { return **cpu_tables().begin(); }

// One parameter with its arrays, twice: for the CPU's kernels and for the GPU's.
struct Parameter {
  Array grad, param, state[3];
  float factor = 1.0F, second_factor = 1.0F;
  bool write_back = true, rounds_products = false;
  uint64_t number = 7;
  int64_t steps = 0;
};

// Tables over host memory, as multi_tensor/cuda_step.cpp makes them for a device.
struct Launch {
  std::vector<cuda::Arrays> arrays;
  std::vector<cuda::Chunk> chunks;
  std::vector<cuda::Numbers> groups;
  std::vector<cuda::Rule> rules;
  std::vector<double> sums;
  std::vector<uint32_t> flags;
  cuda::Tables tables;
  cuda::Decision decision;
  float found_inf = -1.0F, norm = -1.0F, incoming = 0.0F;
  double clip = -1.0, double_norm = -1.0;
  bool has_nan = false;

  Launch(std::vector<Parameter>& parameters, cuda::Numbers numbers) : groups{numbers} {
    for (const bool is_double : {false, true}) {
      for (Parameter& parameter : parameters) {
        if ((parameter.param.storage == Storage::kF64) != is_double) continue;
        cuda::Arrays entry;
        entry.grad.storage = parameter.grad.storage;
        entry.grad.write_back = parameter.write_back;
        entry.grad.data = parameter.grad.data.data();
        entry.grad.measured = entry.grad.data;
        entry.grad.factor = &parameter.factor;
        entry.grad.second_factor = &parameter.second_factor;
        entry.param = parameter.param.stream();
        for (int i = 0; i < 3; ++i) entry.state[i] = parameter.state[i].stream();
        entry.count = parameter.param.count;
        entry.steps = &parameter.steps;
        entry.number = parameter.number;
        entry.rounds_products = parameter.rounds_products;
        entry.first_chunk = static_cast<int32_t>(chunks.size());
        for (int32_t i = 0; i * cuda::kChunk < entry.count; ++i) {
          chunks.push_back({static_cast<int32_t>(arrays.size()), i});
          if (is_double) ++tables.num_double_chunks;
        }
        arrays.push_back(entry);
      }
    }
    rules.resize(arrays.size());
    sums.resize(2 * chunks.size());
    flags.resize(chunks.size());
    tables.arrays = arrays.data();
    tables.chunks = chunks.data();
    tables.groups = groups.data();
    tables.num_arrays = static_cast<int32_t>(arrays.size());
    tables.num_chunks = static_cast<int32_t>(chunks.size());
    tables.has_amsgrad = numbers.amsgrad;
    tables.sums = sums.data();
    tables.flags = flags.data();
    tables.rules = rules.data();
    decision.incoming_found_inf = &incoming;
    decision.found_inf = &found_inf;
    decision.norm = &norm;
    decision.double_norm = &double_norm;
    decision.clip = &clip;
    decision.has_nan = &has_nan;
  }

  void measure() {
    ASSERT_EQ(emulated::kernels().measure(tables, nullptr), nullptr);
    decision.measured = true;
  }
  void step(cuda::Method method) {
    ASSERT_EQ(emulated::kernels().finish(tables, method, decision, nullptr), nullptr);
    ASSERT_EQ(emulated::kernels().update(tables, method, &found_inf, &clip, nullptr), nullptr);
  }
};

constexpr int64_t kLengths[] = {1, 4, 31, 255, 256, 257, 2051, 8192, 8193, 3 * 8192 + 77};
constexpr Storage kParams[] = {Storage::kF32,
                               Storage::kF64,
                               Storage::kBf16,
                               Storage::kF16,
                               Storage::kBf16Stochastic,
                               Storage::kBf16WithRest,
                               Storage::kF16WithCopy};
constexpr Storage kGrads[] = {Storage::kF32, Storage::kBf16, Storage::kF16};
constexpr Storage kMoments[] = {Storage::kF32, Storage::kBf16Stochastic, Storage::kBlock8Signed};

Storage positive(Storage storage) {
  return storage == Storage::kBlock8Signed ? Storage::kBlock8Unsigned : storage;
}

Parameter make(int64_t count, Storage param, Storage grad, Storage moment, bool misaligned,
               unsigned seed) {
  std::mt19937 random(seed);
  Parameter result;
  const bool is_double = param == Storage::kF64;
  const Storage of_state = is_double ? Storage::kF64 : moment;
  result.grad = Array(is_double ? Storage::kF64 : grad, count, misaligned);
  result.param = Array(param, count, misaligned);
  result.state[0] = Array(of_state, count, misaligned);
  result.state[1] = Array(positive(of_state), count, misaligned);
  result.state[2] = Array(positive(of_state), count, misaligned);
  fill(result.grad, scalar(), random, 40.0, false);
  fill(result.param, scalar(), random, 1.0, false);
  fill(result.state[0], scalar(), random, 0.1, false);
  fill(result.state[1], scalar(), random, 0.3, true);
  fill(result.state[2], scalar(), random, 0.3, true);
  return result;
}

void expect_same(Array& expected, Array& actual, const std::string& what) {
  EXPECT_EQ(expected.data.all(), actual.data.all()) << what;
  EXPECT_EQ(expected.rest.all(), actual.rest.all()) << what << ", rest";
  EXPECT_EQ(expected.ties.all(), actual.ties.all()) << what << ", ties";
}

void expect_same(Parameter& expected, Parameter& actual, const std::string& what) {
  expect_same(expected.grad, actual.grad, what + ": gradient");
  expect_same(expected.param, actual.param, what + ": parameter");
  for (int i = 0; i < 3; ++i) {
    expect_same(expected.state[i], actual.state[i], what + ": state " + std::to_string(i));
  }
}

std::string name_of(int64_t count, Storage param, Storage grad, Storage moment, bool misaligned) {
  return std::to_string(count) + " elements, storages " + std::to_string(static_cast<int>(param)) +
         " " + std::to_string(static_cast<int>(grad)) + " " +
         std::to_string(static_cast<int>(moment)) + (misaligned ? ", misaligned" : "");
}

GradStream grad_stream(Parameter& parameter, float clip) {
  return {parameter.grad.storage, parameter.grad.data.data(), parameter.factor,
          parameter.second_factor * clip, parameter.write_back};
}

void set_keys(Parameter& parameter, uint64_t seed) {
  const auto steps = static_cast<uint64_t>(parameter.steps);
  for (uint64_t i = 0; i < 3; ++i) {
    parameter.state[i].key = cuda::key_of_stream(seed, steps, parameter.number, i);
  }
  parameter.param.key = cuda::key_of_stream(seed, steps, parameter.number, 3);
}

void adam_on_cpu(Parameter& parameter, const cuda::Numbers& numbers, float clip) {
  set_keys(parameter, numbers.seed);
  ++parameter.steps;
  AdamRule rule =
      adam_rule(numbers.lr, numbers.beta1, numbers.beta2, numbers.eps, numbers.weight_decay,
                numbers.decoupled, numbers.amsgrad, parameter.steps);
  rule.rounds_products = parameter.rounds_products;
  AdamArrays arrays;
  arrays.grad = grad_stream(parameter, clip);
  arrays.param = parameter.param.stream();
  arrays.exp_avg = parameter.state[0].stream();
  arrays.exp_avg_sq = parameter.state[1].stream();
  if (numbers.amsgrad) arrays.max_exp_avg_sq = parameter.state[2].stream();
  scalar().adam(rule, arrays, {0, parameter.param.count});
}

void sgd_on_cpu(Parameter& parameter, const cuda::Numbers& numbers, float clip) {
  set_keys(parameter, numbers.seed);
  SgdRule rule;
  rule.weight_decay = numbers.weight_decay;
  rule.momentum = numbers.momentum;
  rule.one_minus_dampening = 1.0 - numbers.dampening;
  rule.minus_lr = -numbers.lr;
  rule.nesterov = numbers.nesterov;
  rule.is_first = parameter.steps == 0;
  rule.rounds_products = parameter.rounds_products;
  ++parameter.steps;
  SgdArrays arrays;
  arrays.grad = grad_stream(parameter, clip);
  arrays.param = parameter.param.stream();
  if (numbers.momentum != 0.0) arrays.momentum_buffer = parameter.state[0].stream();
  scalar().sgd(rule, arrays, {0, parameter.param.count});
}

cuda::Numbers adam_numbers() {
  cuda::Numbers numbers;
  numbers.lr = 1e-2;
  numbers.beta1 = 0.9;
  numbers.beta2 = 0.999;
  numbers.eps = 1e-8;
  numbers.weight_decay = 0.01;
  numbers.seed = 42;
  numbers.decoupled = true;
  return numbers;
}

TEST(CudaKernels, AdamHasTheBitsOfTheScalarKernelsForEveryStorageAndLength) {
  unsigned seed = 1;
  for (const int64_t count : kLengths) {
    for (const Storage param : kParams) {
      for (const Storage moment : kMoments) {
        ++seed;
        const Storage grad = kGrads[seed % 3];
        const bool misaligned = seed % 2 == 0;
        cuda::Numbers numbers = adam_numbers();
        numbers.decoupled = seed % 5 != 0;
        numbers.weight_decay = seed % 7 == 0 ? 0.0 : 0.01;
        numbers.amsgrad = seed % 4 == 0;
        std::vector<Parameter> expected{make(count, param, grad, moment, misaligned, seed)};
        expected[0].factor = 1.0F / 64;
        expected[0].rounds_products = seed % 10 == 0;
        std::vector<Parameter> actual = expected;
        for (int step = 0; step < 2; ++step) {
          adam_on_cpu(expected[0], numbers, 1.0F);
          Launch launch(actual, numbers);
          launch.step(cuda::Method::kAdam);
        }
        expect_same(expected[0], actual[0], name_of(count, param, grad, moment, misaligned));
        EXPECT_EQ(actual[0].steps, 2);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(CudaKernels, SgdHasTheBitsOfTheScalarKernels) {
  unsigned seed = 1000;
  for (const int64_t count : kLengths) {
    for (const Storage param : kParams) {
      for (int variant = 0; variant < 4; ++variant) {
        ++seed;
        const Storage grad = kGrads[seed % 3], moment = kMoments[seed / 3 % 3];
        cuda::Numbers numbers;
        numbers.lr = 0.1;
        numbers.seed = 3;
        numbers.weight_decay = variant % 2 == 0 ? 0.0 : 0.02;
        numbers.momentum = variant / 2 == 0 ? 0.0 : 0.9;
        numbers.dampening = seed % 3 == 0 ? 0.1 : 0.0;
        numbers.nesterov = seed % 3 == 1 && numbers.momentum != 0.0;
        std::vector<Parameter> expected{make(count, param, grad, moment, seed % 2 == 0, seed)};
        expected[0].factor = 1.0F / 8;
        expected[0].second_factor = 0.75F;
        expected[0].rounds_products = seed % 8 == 0;
        std::vector<Parameter> actual = expected;
        for (int step = 0; step < 2; ++step) {
          sgd_on_cpu(expected[0], numbers, 1.0F);
          Launch launch(actual, numbers);
          launch.step(cuda::Method::kSgd);
        }
        expect_same(expected[0], actual[0], name_of(count, param, grad, moment, seed % 2 == 0));
        if (HasFailure()) return;
      }
    }
  }
}

// A float64 loop of You et al. 2020, algorithm 2, for the float64 kernels; the order of the two
// sums is all that differs from the CPU's: 1e-13 relative bounds it for 25,000 addends of one sign.
TEST(CudaKernels, LambFollowsAFloat64LoopOfThePaper) {
  cuda::Numbers numbers = adam_numbers();
  numbers.eps = 1e-6;
  for (const int64_t count : {1, 300, 8192, 3 * 8192 + 77}) {
    std::vector<Parameter> parameters{
        make(count, Storage::kF64, Storage::kF64, Storage::kF64, false, 5)};
    Parameter& p = parameters[0];
    const auto doubles = [&](Array& array) {
      std::vector<double> values(static_cast<size_t>(count));
      memcpy(values.data(), array.data.data(), values.size() * sizeof(double));
      return values;
    };
    std::vector<double> w = doubles(p.param), g = doubles(p.grad), m = doubles(p.state[0]),
                        v = doubles(p.state[1]), u(w.size());
    double weight = 0.0, length = 0.0;
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      u[i] = (m[i] / 0.1) / (std::sqrt(v[i] / 0.001) + 1e-6) + 0.01 * w[i];
      weight += w[i] * w[i];
      length += u[i] * u[i];
    }
    Launch launch(parameters, numbers);
    launch.step(cuda::Method::kLamb);
    const std::vector<double> actual = doubles(p.param);
    for (size_t i = 0; i < w.size(); ++i) {
      const double expected = w[i] - 1e-2 * std::sqrt(weight) / std::sqrt(length) * u[i];
      ASSERT_NEAR(actual[i], expected, 1e-12 * (1.0 + std::fabs(expected))) << i << " of " << count;
    }
  }
}

TEST(CudaKernels, LambIsTheScalarKernelsWithinTheRoundingOfTwoSums) {
  unsigned seed = 77;
  cuda::Numbers numbers = adam_numbers();
  for (const int64_t count : kLengths) {
    for (const Storage param : kParams) {
      for (const Storage moment : kMoments) {
        ++seed;
        std::vector<Parameter> expected{
            make(count, param, kGrads[seed % 3], moment, seed % 2 == 0, seed)};
        std::vector<Parameter> actual = expected;
        Launch launch(actual, numbers);
        launch.step(cuda::Method::kLamb);

        Parameter& p = expected[0];
        set_keys(p, numbers.seed);
        LambArrays arrays{grad_stream(p, 1.0F), p.param.stream(), p.state[0].stream(),
                          p.state[1].stream()};
        const LambRule rule =
            lamb_rule(numbers.beta1, numbers.beta2, numbers.eps, numbers.weight_decay, 1);
        const LambNorms norms = scalar().lamb_moments(rule, arrays, {0, count});
        double weights = 0.0, directions = 0.0;
        for (size_t i = 0; i < launch.chunks.size(); ++i) {
          weights += launch.sums[2 * i];
          directions += launch.sums[2 * i + 1];
        }
        EXPECT_NEAR(weights / norms.weight, 1.0, 1e-13);
        EXPECT_NEAR(directions / norms.direction, 1.0, 1e-13);
        if (param != Storage::kF64) {  // float32 rounds the difference of the sums away
          scalar().lamb_apply(rule, arrays, lamb_step(numbers.lr, weights, directions), {0, count});
          expect_same(p, actual[0], name_of(count, param, p.grad.storage, moment, seed % 2 == 0));
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(CudaKernels, LambTakesTheNormsOfEachParameterAlone) {
  std::vector<Parameter> together;
  for (unsigned i = 0; i < 4; ++i) {
    together.push_back(make(9000 * (i + 1), i == 2 ? Storage::kF64 : Storage::kF32, Storage::kF32,
                            Storage::kF32, false, 60 + i));
  }
  std::vector<Parameter> alone = together;
  Launch launch(together, adam_numbers());
  launch.step(cuda::Method::kLamb);
  for (size_t i = 0; i < alone.size(); ++i) {
    std::vector<Parameter> one{alone[i]};
    Launch launch_of_one(one, adam_numbers());
    launch_of_one.step(cuda::Method::kLamb);
    expect_same(one[0], together[i], "parameter " + std::to_string(i));
  }
}

TEST(CudaKernels, ManyParametersOfManyKindsGoThroughOneLaunch) {
  cuda::Numbers numbers = adam_numbers();
  std::vector<Parameter> expected;
  unsigned seed = 500;
  for (int i = 0; i < 40; ++i) {
    ++seed;
    expected.push_back(make(1 + (seed * 7919) % 20000, kParams[seed % 7], kGrads[seed % 3],
                            kMoments[seed / 7 % 3], seed % 2 == 0, seed));
    expected.back().number = seed;
    expected.back().steps = i % 3;
    expected.back().write_back = i % 2 == 0;
    expected.back().factor = 1.0F / 1024;
  }
  std::vector<Parameter> actual = expected;
  emulated::num_launches = 0;
  Launch launch(actual, numbers);
  launch.measure();
  launch.decision.checked = true;
  launch.decision.clips = true;
  launch.decision.max_norm = 1.0;
  launch.step(cuda::Method::kAdam);
  EXPECT_EQ(emulated::num_launches, 2 + 1 + 2);  // float32 and float64: measure, decide, update

  double sum = 0.0;
  for (Parameter& parameter : expected) {
    const GradStream grad = grad_stream(parameter, 1.0F);
    sum += scalar().measure(grad, {0, parameter.param.count}).sum_of_squares;
  }
  EXPECT_FLOAT_EQ(launch.norm, static_cast<float>(std::sqrt(sum)));
  EXPECT_EQ(launch.clip, clip_factor(launch.norm, 1.0));
  EXPECT_LT(launch.clip, 0.2F);
  EXPECT_EQ(launch.found_inf, 0.0F);
  for (size_t i = 0; i < expected.size(); ++i) {
    adam_on_cpu(expected[i], numbers, static_cast<float>(launch.clip));
    expect_same(expected[i], actual[i], "parameter " + std::to_string(i));
    EXPECT_EQ(expected[i].steps, actual[i].steps);
  }
}

TEST(CudaKernels, ANonFiniteGradientAnywhereSkipsAndIsStillUnscaled) {
  const double kInf = std::numeric_limits<double>::infinity();
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const Storage grad : {Storage::kF32, Storage::kBf16, Storage::kF16, Storage::kF64}) {
    const Storage param = grad == Storage::kF64 ? Storage::kF64 : Storage::kF32;
    for (const int64_t where : {0, 4096, 8191, 8192, 16400}) {
      for (const double what : {kInf, -kInf, kNan}) {
        for (const auto method : {cuda::Method::kAdam, cuda::Method::kSgd, cuda::Method::kLamb}) {
          std::vector<Parameter> expected{
              make(16401, param, grad, Storage::kF32, false, 11),
              make(100, Storage::kF32, Storage::kF32, Storage::kF32, true, 12)};
          for (Parameter& parameter : expected) parameter.factor = 0.25F;
          expected[1].write_back = false;
          Array& target = expected[0].grad;
          if (grad == Storage::kF64) {
            memcpy(target.data.data() + 8 * where, &what, 8);
          } else {
            const auto value = static_cast<float>(what);
            const uint16_t bf16 = to_bf16(value), f16 = to_f16(value);
            if (grad == Storage::kF32) memcpy(target.data.data() + 4 * where, &value, 4);
            if (grad == Storage::kBf16) memcpy(target.data.data() + 2 * where, &bf16, 2);
            if (grad == Storage::kF16) memcpy(target.data.data() + 2 * where, &f16, 2);
          }
          std::vector<Parameter> actual = expected;
          Launch launch(actual, adam_numbers());
          launch.measure();
          launch.decision.checked = true;
          launch.decision.clips = true;
          launch.decision.max_norm = 1.0;
          launch.step(method);
          EXPECT_EQ(launch.found_inf, 1.0F);
          EXPECT_EQ(launch.has_nan, what != what);
          EXPECT_EQ(actual[0].steps, 0);
          scalar().multiply(grad_stream(expected[0], 1.0F), {0, 16401});
          for (int i = 0; i < 2; ++i) expect_same(expected[i], actual[i], "skipped");
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(CudaKernels, AnIncomingFoundInfSkipsWithoutACheck) {
  std::vector<Parameter> parameters{
      make(300, Storage::kBf16WithRest, Storage::kBf16, Storage::kBlock8Signed, false, 3)};
  parameters[0].factor = 0.5F;
  parameters[0].write_back = false;
  std::vector<Parameter> before = parameters;
  Launch launch(parameters, adam_numbers());
  launch.incoming = 1.0F;
  launch.step(cuda::Method::kAdam);
  EXPECT_EQ(launch.found_inf, 1.0F);
  expect_same(before[0], parameters[0], "skipped");
  EXPECT_EQ(parameters[0].steps, 0);
}

TEST(CudaKernels, AFiniteSquareThatOverflowsDoubleIsNoSkip) {
  std::vector<Parameter> parameters{
      make(10, Storage::kF64, Storage::kF64, Storage::kF64, false, 3)};
  const double large = 1e200;
  memcpy(parameters[0].grad.data.data(), &large, sizeof large);
  Launch launch(parameters, adam_numbers());
  launch.measure();
  launch.decision.checked = true;
  launch.step(cuda::Method::kAdam);
  EXPECT_EQ(launch.found_inf, 0.0F);
  EXPECT_TRUE(std::isinf(launch.norm));
}

TEST(CudaKernels, ResultsDoNotDependOnTheOrderOfBlocks) {
  for (const auto method : {cuda::Method::kAdam, cuda::Method::kSgd, cuda::Method::kLamb}) {
    std::vector<Parameter> forwards;
    for (unsigned i = 0; i < 6; ++i) {
      forwards.push_back(
          make(5000 * (i + 1), kParams[i], kGrads[i % 3], kMoments[i % 3], false, i));
    }
    std::vector<Parameter> backwards = forwards;
    float norms[2];
    for (const bool reverse : {false, true}) {
      emulated::backwards = reverse;
      Launch launch(reverse ? backwards : forwards, adam_numbers());
      launch.measure();
      launch.step(method);
      norms[reverse ? 1 : 0] = launch.norm;
    }
    emulated::backwards = false;
    EXPECT_EQ(norms[0], norms[1]);
    for (size_t i = 0; i < forwards.size(); ++i) expect_same(forwards[i], backwards[i], "order");
  }
}

TEST(CudaKernels, MultiplyHasTheBitsOfTheScalarKernels) {
  for (const int64_t count : kLengths) {
    for (const Storage grad : {Storage::kF32, Storage::kBf16, Storage::kF16, Storage::kF64}) {
      std::vector<Parameter> expected{make(count, grad, grad, Storage::kF32, count % 2 == 1, 9)};
      expected[0].factor = 0.3F;
      expected[0].second_factor = 0.7F;
      expected[0].write_back = false;
      std::vector<Parameter> actual = expected;
      Launch launch(actual, {});
      ASSERT_EQ(emulated::kernels().multiply(launch.tables, nullptr), nullptr);
      scalar().multiply(grad_stream(expected[0], 1.0F), {0, count});
      expect_same(expected[0].grad, actual[0].grad, std::to_string(count));
    }
  }
}

TEST(CudaKernels, AnEmptyListLaunchesOnlyTheDecision) {
  std::vector<Parameter> nothing;
  Launch launch(nothing, adam_numbers());
  launch.decision.checked = true;
  emulated::num_launches = 0;
  launch.measure();
  launch.step(cuda::Method::kAdam);
  EXPECT_EQ(emulated::num_launches, 1);
  EXPECT_EQ(launch.found_inf, 0.0F);
  EXPECT_EQ(launch.norm, 0.0F);
}

TEST(CudaKernels, UploadCopiesAnyNumberOfBytes) {
  for (const size_t size : {0, 1, 255, 3840, 3841, 20000}) {
    std::vector<unsigned char> from(size), to(size + 1, 0xEE);
    for (size_t i = 0; i < size; ++i) from[i] = static_cast<unsigned char>(i * 31 + 7);
    ASSERT_EQ(emulated::kernels().upload(to.data(), from.data(), size, nullptr), nullptr);
    EXPECT_EQ(to.back(), 0xEE);
    to.pop_back();
    EXPECT_EQ(from, to);
  }
}

// The C library's pow is within one unit in the last place; ours is the nearest double.
TEST(CudaKernels, PowersAreThoseOfTheCLibrary) {
  int64_t differing = 0, total = 0;
  for (const double beta : {0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.999999}) {
    for (int64_t step = 0; step < 20000; step += step < 2000 ? 1 : 97) {
      const double expected = std::pow(beta, static_cast<double>(step));
      const double actual = integer_power(beta, step);
      ++total;
      if (actual != expected) ++differing;
      ASSERT_LE(std::fabs(actual - expected), std::numeric_limits<double>::epsilon() * expected);
      // What an optimizer makes of it is the same float32.
      ASSERT_EQ(static_cast<float>(std::sqrt(1.0 - actual)),
                static_cast<float>(std::pow(1.0 - expected, 0.5)));
    }
  }
  EXPECT_LE(differing * 1000, total);
  EXPECT_EQ(integer_power(0.999, int64_t{1} << 40), 0.0);
}

}  // namespace
