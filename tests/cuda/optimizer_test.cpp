// Whole optimizers through the CUDA kernels, beside the same optimizers on the CPU. Gradients are
// small multiples of a power of two, so sums of squares are exact and do not depend on their order:
// everything is compared bit for bit.

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <tuple>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "cuda/device_under_test.h"
#include "torchamp/optim/master_weights.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

using device_under_test::device;

class CudaOptimizer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = device_under_test::why_skipped(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
  void TearDown() override {
    device_under_test::set_capturing(false);
    device_under_test::take_kernels(false);
  }
};

using Parameters = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&,
                                                                    const optim::FusedOptions&)>;

struct Kind {
  const char* name;
  Make make;
  bool is_exact = true;  // LAMB's norms are sums of anything
};

std::vector<Kind> kinds() {
  using optim::FusedOptions;
  return {
      {"AdamW",
       [](const Parameters& p, const FusedOptions& fused) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.1).weight_decay(0.02),
                                               fused);
       }},
      {"AdamW amsgrad",
       [](const Parameters& p, const FusedOptions& fused) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.1).amsgrad(true), fused);
       }},
      {"Adam",
       [](const Parameters& p, const FusedOptions& fused) {
         return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.1).weight_decay(0.1), fused);
       }},
      {"SGD",
       [](const Parameters& p, const FusedOptions& fused) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1), fused);
       }},
      {"SGD momentum",
       [](const Parameters& p, const FusedOptions& fused) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01), fused);
       }},
      {"LAMB",
       [](const Parameters& p, const FusedOptions& fused) {
         return std::make_unique<optim::LAMB>(p, optim::LAMBOptions(0.01), fused);
       },
       false}};
}

at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// Made on the CPU, so that both sides hold the same bits.
Parameters make_parameters(at::Device where, const std::vector<at::ScalarType>& dtypes) {
  Parameters parameters;
  const std::vector<std::vector<int64_t>> shapes = {{300, 41}, {1}, {17}, {8200}, {3, 5, 7, 9}};
  auto random = generator(7);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::ScalarType dtype = dtypes[i % dtypes.size()];
    at::Tensor values = torch::randn(shapes[i], random, at::dtype(at::kFloat)).to(dtype);
    if (i == 4) values = values.contiguous(at::MemoryFormat::ChannelsLast);
    parameters.push_back(values.to(where).detach().requires_grad_());
  }
  return parameters;
}

// Multiples of 1/64 up to 2, times `scale`.
void set_gradients(const Parameters& parameters, int step, double scale, double poison = 0.0) {
  auto random = generator(100 + static_cast<uint64_t>(step));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& p = parameters[i];
    at::Tensor g = torch::randint(-128, 129, p.sizes(), random, at::dtype(at::kFloat)) / 64.0;
    if (p.is_complex()) g = torch::complex(g, g.flip({0}));
    g = (g * scale).to(p.scalar_type());
    if (i == 1 && poison != 0.0) g.view({-1})[0] = poison;
    if (i == 0 && g.dim() == 2) g = g.t().contiguous().t();  // another order than the parameter's
    p.mutable_grad() = g.to(p.device());
  }
}

void expect_same(const at::Tensor& expected, const at::Tensor& actual, bool exact,
                 const std::string& what) {
  ASSERT_EQ(expected.defined(), actual.defined()) << what;
  if (!expected.defined()) return;
  const at::Tensor a = expected.detach().cpu(), b = actual.detach().cpu();
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  // float32: two roundings of a step length of 0.01. float64: the last bits of beta^t and of norms
  // over 12300 elements, 12300 * 2^-53 at most, in six steps.
  const bool is_double = c10::toRealValueType(a.scalar_type()) == at::kDouble;
  const bool same = exact       ? at::equal(a, b)
                    : is_double ? at::allclose(a, b, 1e-11, 1e-12)
                                : at::allclose(a, b, 1e-5, 1e-6);
  EXPECT_TRUE(same) << what << ": " << (a != b).sum().item<int64_t>() << " of " << a.numel()
                    << " differ, at most by " << (a - b).abs().max().item<double>();
}

void expect_same(torch::optim::Optimizer& expected, torch::optim::Optimizer& actual, bool exact,
                 const std::string& what) {
  const auto& expected_parameters = expected.param_groups()[0].params();
  const auto& actual_parameters = actual.param_groups()[0].params();
  for (size_t i = 0; i < expected_parameters.size(); ++i) {
    const std::string name = what + ", parameter " + std::to_string(i);
    expect_same(expected_parameters[i], actual_parameters[i], exact, name);
    expect_same(expected_parameters[i].grad(), actual_parameters[i].grad(), true,
                name + ", gradient");
  }
  std::stringstream expected_state, actual_state;  // states and counts of steps
  for (auto* both : {&expected, &actual}) {
    std::stringstream& text = both == &expected ? expected_state : actual_state;
    dynamic_cast<optim::FusedOptimizer&>(*both).sync_state();
    for (const auto& p : both->param_groups()[0].params()) {
      const auto it = both->state().find(p.unsafeGetTensorImpl());
      if (it == both->state().end()) continue;
      if (const auto* state = dynamic_cast<torch::optim::AdamWParamState*>(it->second.get())) {
        text << state->step() << " " << state->exp_avg().to(at::kDouble).sum().item<double>() << " "
             << state->exp_avg_sq().to(at::kDouble).sum().item<double>() << "\n";
      } else if (const auto* adam = dynamic_cast<torch::optim::AdamParamState*>(it->second.get())) {
        text << adam->step() << "\n";
      } else if (const auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(it->second.get())) {
        text << sgd->momentum_buffer().defined() << "\n";
      }
    }
  }
  EXPECT_EQ(expected_state.str(), actual_state.str()) << what;
}

amp::GradScaler scaler_on(at::Device where) {
  amp::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  scaler.scale(torch::zeros({}, at::device(where)));
  return scaler;
}

enum class Use { kPlain, kScaler, kUnscale };

// Six steps, the second of them with an inf where there is a scaler.
std::unique_ptr<torch::optim::Optimizer> train(const Kind& kind, bool cuda, Use use,
                                               const std::vector<at::ScalarType>& dtypes,
                                               const optim::FusedOptions& fused, int begin = 0,
                                               int end = 6) {
  device_under_test::take_kernels(cuda);
  const at::Device where = cuda ? device() : at::Device(at::kCPU);
  const Parameters parameters = make_parameters(where, dtypes);
  auto optimizer = kind.make(parameters, fused);
  amp::GradScaler scaler = scaler_on(where);
  for (int step = begin; step < end; ++step) {
    if (use == Use::kPlain) {
      set_gradients(parameters, step, 1.0);
      optimizer->step();
      continue;
    }
    const double poison = step == 1 ? std::numeric_limits<double>::infinity() : 0.0;
    scaler.scale(torch::zeros({}, at::device(where)));  // so that no gradient looks older
    set_gradients(parameters, step, scaler.get_scale(), poison);
    if (use == Use::kUnscale) {
      scaler.unscale_(*optimizer);
      clip_grad_norm_(parameters, 1.0);
    }
    const amp::StepOutcome outcome = scaler.step(*optimizer);
    scaler.update();
    EXPECT_EQ(outcome.skipped(), step == 1) << kind.name << " step " << step;
  }
  device_under_test::take_kernels(false);
  return optimizer;
}

const std::vector<at::ScalarType> kDtypes[] = {
    {at::kFloat}, {at::kDouble}, {at::kFloat, at::kDouble, at::kFloat}};

optim::FusedOptions ieee() {
  optim::FusedOptions fused;
  fused.roots = optim::Roots::kIeee;
  return fused;
}

TEST_F(CudaOptimizer, StepsAreThoseOfTheCpu) {
  for (const Kind& kind : kinds()) {
    for (const auto& dtypes : kDtypes) {
      for (const Use use : {Use::kPlain, Use::kScaler}) {
        // float64 keeps the last bit of beta^t, which the C library rounds otherwise at times.
        const bool exact = kind.is_exact && dtypes.size() == 1 && dtypes[0] == at::kFloat;
        const auto expected = train(kind, false, use, dtypes, ieee());
        const auto actual = train(kind, true, use, dtypes, ieee());
        expect_same(*expected, *actual, exact, kind.name);
      }
    }
  }
}

TEST_F(CudaOptimizer, ClippingInsideTheStepIsThatOfTheCpu) {
  for (const Kind& kind : kinds()) {
    for (const auto& dtypes : kDtypes) {
      optim::FusedOptions fused = ieee();
      fused.max_grad_norm = 1.0;
      const bool exact = kind.is_exact && dtypes.size() == 1 && dtypes[0] == at::kFloat;
      const auto expected = train(kind, false, Use::kScaler, dtypes, fused);
      const auto actual = train(kind, true, Use::kScaler, dtypes, fused);
      expect_same(*expected, *actual, exact, kind.name);
      auto& cpu = dynamic_cast<optim::FusedOptimizer&>(*expected);
      auto& gpu = dynamic_cast<optim::FusedOptimizer&>(*actual);
      expect_same(cpu.last_grad_norm(), gpu.last_grad_norm(), true, kind.name);
    }
  }
}

// With these betas every beta^t is a double, so that nothing depends on how it was computed.
std::vector<Kind> kinds_with_exact_powers() {
  using optim::FusedOptions;
  const std::tuple<double, double> betas(0.5, 0.75);
  return {{"AdamW",
           [=](const Parameters& p, const FusedOptions& fused) {
             return std::make_unique<optim::AdamW>(
                 p, optim::AdamWOptions(0.1).weight_decay(0.02).betas(betas), fused);
           }},
          {"AdamW amsgrad",
           [=](const Parameters& p, const FusedOptions& fused) {
             return std::make_unique<optim::AdamW>(
                 p, optim::AdamWOptions(0.1).amsgrad(true).betas(betas), fused);
           }},
          {"Adam",
           [=](const Parameters& p, const FusedOptions& fused) {
             return std::make_unique<optim::Adam>(
                 p, optim::AdamOptions(0.1).weight_decay(0.1).betas(betas), fused);
           }},
          {"SGD momentum", [](const Parameters& p, const FusedOptions& fused) {
             return std::make_unique<optim::SGD>(
                 p, optim::SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01), fused);
           }}};
}

TEST_F(CudaOptimizer, Float64StepsHaveTheBitsOfTheCpu) {
  for (const Kind& kind : kinds_with_exact_powers()) {
    for (const auto& dtypes : kDtypes) {
      for (const bool clips : {false, true}) {
        optim::FusedOptions fused = ieee();
        if (clips) fused.max_grad_norm = 0.7;  // its factor is no float32
        const auto expected = train(kind, false, Use::kScaler, dtypes, fused);
        const auto actual = train(kind, true, Use::kScaler, dtypes, fused);
        expect_same(*expected, *actual, true, kind.name);
      }
    }
  }
}

// Algorithm 2 of You et al. 2020 with bias correction, one tensor, number by number in float64.
struct PaperLamb {
  std::vector<double> p, m, v;
  int t = 0;

  explicit PaperLamb(const at::Tensor& parameter) : p(numbers_of(parameter)) {
    m.assign(p.size(), 0.0);
    v.assign(p.size(), 0.0);
  }
  static std::vector<double> numbers_of(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.detach().cpu().to(at::kDouble).contiguous();
    const double* begin = flat.const_data_ptr<double>();
    return {begin, begin + flat.numel()};
  }
  void step(const at::Tensor& gradient, double lr, double weight_decay, double eps) {
    ++t;
    const std::vector<double> g = numbers_of(gradient);
    std::vector<double> u(p.size());
    double weight_squares = 0.0, direction_squares = 0.0;
    for (size_t i = 0; i < p.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      const double root = std::sqrt(v[i] / (1.0 - std::pow(0.999, t)));
      u[i] = m[i] / (1.0 - std::pow(0.9, t)) / (root + eps) + weight_decay * p[i];
      weight_squares += p[i] * p[i];
      direction_squares += u[i] * u[i];
    }
    const double ratio = std::sqrt(weight_squares) / std::sqrt(direction_squares);
    for (size_t i = 0; i < p.size(); ++i) p[i] -= lr * ratio * u[i];
  }
};

TEST_F(CudaOptimizer, LambFollowsThePaperInBothPrecisions) {
  device_under_test::take_kernels(true);
  const Parameters parameters =
      make_parameters(device(), {at::kFloat, at::kDouble, at::kFloat, at::kFloat, at::kDouble});
  std::vector<PaperLamb> papers(parameters.begin(), parameters.end());
  optim::LAMB optimizer(parameters, optim::LAMBOptions(0.01).weight_decay(0.1).eps(1e-6), ieee());
  constexpr int kSteps = 6;
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(parameters, step, 1.0);
    for (size_t i = 0; i < parameters.size(); ++i) {
      papers[i].step(parameters[i].grad(), 0.01, 0.1, 1e-6);
    }
    optimizer.step();
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<double> actual = PaperLamb::numbers_of(parameters[i]);
    const bool is_double = parameters[i].scalar_type() == at::kDouble;
    // A step moves a weight by 0.01 ratio |u|, with ratio |u| of the weights' own size (up to 5, or
    // 30 for few of them), and errs by some 10 roundings of that and one of the weight.
    const double unit = is_double ? 0x1p-53 : 0x1p-24;
    for (size_t k = 0; k < actual.size(); ++k) {
      ASSERT_NEAR(actual[k], papers[i].p[k], kSteps * unit * (10 * 0.3 + 5))
          << "parameter " << i << " element " << k;
    }
  }
}

TEST_F(CudaOptimizer, LambsMomentsHaveTheBitsOfTheCpuInEveryStorage) {
  const Kind lamb = kinds().back();
  for (const auto moments :
       {optim::Moments::kFloat32, optim::Moments::kBFloat16, optim::Moments::k8Bit}) {
    optim::FusedOptions fused = ieee();
    fused.moments = moments;
    fused.seed = 5;
    const auto expected = train(lamb, false, Use::kScaler, {at::kFloat}, fused);
    const auto actual = train(lamb, true, Use::kScaler, {at::kFloat}, fused);
    for (size_t i = 0; i < 5; ++i) {
      const auto state_of = [i](torch::optim::Optimizer& optimizer) {
        const at::Tensor& p = optimizer.param_groups()[0].params()[i];
        return static_cast<torch::optim::AdamWParamState*>(
            optimizer.state().at(p.unsafeGetTensorImpl()).get());
      };
      const auto* a = state_of(*expected);
      const auto* b = state_of(*actual);
      expect_same(a->exp_avg(), b->exp_avg(), true, "exp_avg");
      expect_same(a->exp_avg_sq(), b->exp_avg_sq(), true, "exp_avg_sq");
    }
    expect_same(*expected, *actual, false, "weights");
  }
}

TEST_F(CudaOptimizer, UnscaleAndClipBeforeTheStepGiveTheSameNumbers) {
  for (const Kind& kind : kinds()) {
    const auto expected = train(kind, false, Use::kUnscale, {at::kFloat}, ieee());
    const auto actual = train(kind, true, Use::kUnscale, {at::kFloat}, ieee());
    // clip_grad_norm_ takes its norm in another order on each device: an ulp of the factor.
    expect_same(*expected, *actual, false, kind.name);
  }
}

TEST_F(CudaOptimizer, LowMemoryStatesHaveTheBitsOfTheCpu) {
  for (const auto moments : {optim::Moments::kBFloat16, optim::Moments::k8Bit}) {
    for (const Kind& kind : kinds()) {
      if (std::string(kind.name) != "AdamW") continue;  // keys of chance follow the count of steps
      optim::FusedOptions fused = ieee();
      fused.moments = moments;
      fused.seed = 5;
      const auto expected = train(kind, false, Use::kScaler, {at::kFloat}, fused);
      const auto actual = train(kind, true, Use::kScaler, {at::kFloat}, fused);
      expect_same(*expected, *actual, true, kind.name);
    }
  }
}

TEST_F(CudaOptimizer, SixteenBitWeightsHaveTheBitsOfTheCpu) {
  using optim::LowPrecisionWeights;
  const struct {
    LowPrecisionWeights weights;
    at::ScalarType dtype;
  } all[] = {{LowPrecisionWeights::kMaster, at::kBFloat16},
             {LowPrecisionWeights::kMaster, at::kHalf},
             {LowPrecisionWeights::kPlain, at::kBFloat16},
             {LowPrecisionWeights::kStochastic, at::kBFloat16}};
  const Kind adamw = kinds()[0];
  for (const auto& each : all) {
    optim::FusedOptions fused = ieee();
    fused.low_precision_weights = each.weights;
    fused.max_grad_norm = 1.0;
    const auto expected = train(adamw, false, Use::kScaler, {each.dtype}, fused);
    const auto actual = train(adamw, true, Use::kScaler, {each.dtype}, fused);
    expect_same(*expected, *actual, true, c10::toString(each.dtype));
  }
}

TEST_F(CudaOptimizer, FactorsThatWaitForAMasterAreAppliedInFloat32) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Kind sgd = kinds()[4];
    at::Tensor exact[2];
    for (const bool cuda : {false, true}) {
      const auto optimizer = train(sgd, cuda, Use::kUnscale, {dtype}, ieee());
      const at::Tensor& weight = optimizer->param_groups()[0].params()[0];
      exact[cuda ? 1 : 0] = optim::detail::find_master(weight)->to_float(weight);
    }
    // The clip factor's norm is summed in another order; 16-bit roundings would be 4e-3.
    expect_same(exact[0], exact[1], false, c10::toString(dtype));
  }
}

TEST_F(CudaOptimizer, ComplexParametersAndEmptyOnesAreTaken) {
  for (const Kind& kind : kinds()) {
    at::Tensor results[2];
    for (const bool cuda : {false, true}) {
      device_under_test::take_kernels(cuda);
      const at::Device where = cuda ? device() : at::Device(at::kCPU);
      auto random = generator(3);
      const at::Tensor values = torch::randn({30, 4}, random, at::dtype(at::kFloat));
      at::Tensor p = torch::complex(values, values.flip({0})).to(where).requires_grad_();
      at::Tensor empty = torch::zeros({0, 3}, at::device(where)).requires_grad_();
      auto optimizer = kind.make({p, empty}, ieee());
      for (int step = 0; step < 3; ++step) {
        set_gradients({p}, step, 1.0);
        empty.mutable_grad() = torch::zeros_like(empty);
        optimizer->step();
      }
      results[cuda ? 1 : 0] = torch::view_as_real(p.detach()).clone();
    }
    expect_same(results[0], results[1], kind.is_exact, kind.name);
  }
}

TEST_F(CudaOptimizer, SlicesAndOtherOrdersOfMemoryAreTaken) {
  at::Tensor results[2];
  for (const bool cuda : {false, true}) {
    device_under_test::take_kernels(cuda);
    const at::Device where = cuda ? device() : at::Device(at::kCPU);
    auto random = generator(3);
    const at::Tensor base = torch::randn({40, 50}, random, at::dtype(at::kFloat)).to(where);
    at::Tensor slice = base.slice(1, 3, 40, 2).detach().requires_grad_();
    at::Tensor transposed = base.clone().t().detach().requires_grad_();
    optim::AdamW optimizer({slice, transposed}, optim::AdamWOptions(0.1), ieee());
    for (int step = 0; step < 3; ++step) {
      set_gradients({slice, transposed}, step, 1.0);
      optimizer.step();
    }
    results[cuda ? 1 : 0] = torch::cat({base.reshape({-1}), transposed.detach().reshape({-1})});
  }
  expect_same(results[0], results[1], true, "layouts");
}

TEST_F(CudaOptimizer, AFirstStepThatIsSkippedLeavesNoMomentum) {
  device_under_test::take_kernels(true);
  const Parameters parameters = make_parameters(device(), {at::kFloat});
  optim::SGD optimizer(parameters, optim::SGDOptions(0.5).momentum(0.9).dampening(0.5), ieee());
  amp::GradScaler scaler = scaler_on(device());
  const at::Tensor before = parameters[0].detach().clone();
  set_gradients(parameters, 0, 1024, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  scaler.update();
  EXPECT_TRUE(at::equal(before, parameters[0]));
  set_gradients(parameters, 1, 512);
  const at::Tensor gradient = parameters[0].grad() / 512;
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  // The gradient as it is, not half of it.
  expect_same(before - 0.5 * gradient, parameters[0], true, "weights");
}

TEST_F(CudaOptimizer, CountsOfStepsFollowAppliedStepsWhenRead) {
  device_under_test::take_kernels(true);
  const Parameters parameters = make_parameters(device(), {at::kFloat});
  optim::AdamW optimizer(parameters, optim::AdamWOptions(0.1), ieee());
  amp::GradScaler scaler = scaler_on(device());
  for (int step = 0; step < 5; ++step) {
    const double poison = step % 2 == 1 ? std::numeric_limits<double>::infinity() : 0.0;
    set_gradients(parameters, step, scaler.get_scale(), poison);
    scaler.step(optimizer);
    scaler.update();
  }
  const base::StateDict dict = optim::optimizer_state_dict(optimizer);
  const auto& state = dict.at("state").to_dict("state").at(int64_t{0}).to_dict("0");
  EXPECT_EQ(state.at("step").to_double("step"), 3.0);
}

TEST_F(CudaOptimizer, ALoadedStateIsTakenUp) {
  const Kind adamw = kinds()[0];
  const auto straight = train(adamw, true, Use::kPlain, {at::kFloat}, ieee());
  device_under_test::take_kernels(true);
  // Another optimizer that has made other steps takes over the state of step 3, then goes on.
  const auto first = train(adamw, true, Use::kPlain, {at::kFloat}, ieee(), 0, 3);
  const auto second = train(adamw, true, Use::kPlain, {at::kFloat}, ieee(), 2, 4);
  device_under_test::take_kernels(true);
  optim::load_optimizer_state_dict(*second, optim::optimizer_state_dict(*first));
  const torch::NoGradGuard no_grad;
  const Parameters& parameters = second->param_groups()[0].params();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(first->param_groups()[0].params()[i]);
  }
  for (int step = 3; step < 6; ++step) {
    set_gradients(parameters, step, 1.0);
    second->step();
  }
  expect_same(*straight, *second, true, "continued");
}

TEST_F(CudaOptimizer, GradientsAreConsumedWhenAskedFor) {
  device_under_test::take_kernels(true);
  for (const bool poisoned : {false, true}) {
    const Parameters parameters = make_parameters(device(), {at::kFloat});
    optim::AdamW optimizer(parameters, optim::AdamWOptions(0.1), ieee());
    optimizer.set_consume_gradients(true);
    amp::GradScaler scaler = scaler_on(device());
    set_gradients(parameters, 0, 1024, poisoned ? INFINITY : 0.0);
    const at::Tensor kept = parameters[0].grad(), before = kept.clone();
    EXPECT_EQ(scaler.step(optimizer).skipped(), poisoned);
    for (const at::Tensor& p : parameters) EXPECT_FALSE(p.grad().defined());
    EXPECT_TRUE(at::equal(kept, before));
  }
}

TEST_F(CudaOptimizer, EveryWrittenTensorHasANewVersion) {
  device_under_test::take_kernels(true);
  const Parameters parameters = make_parameters(device(), {at::kFloat});
  optim::AdamW optimizer(parameters, optim::AdamWOptions(0.1), ieee());
  set_gradients(parameters, 0, 1.0);
  optimizer.step();
  auto& state = static_cast<torch::optim::AdamWParamState&>(
      *optimizer.state().at(parameters[0].unsafeGetTensorImpl()));
  const auto of_parameter = parameters[0]._version(), of_moment = state.exp_avg()._version();
  set_gradients(parameters, 1, 1.0);
  optimizer.step();
  EXPECT_GT(parameters[0]._version(), of_parameter);
  EXPECT_GT(state.exp_avg()._version(), of_moment);
}

TEST_F(CudaOptimizer, WrongGradientsAreRefusedBeforeAnythingChanges) {
  device_under_test::take_kernels(true);
  const Parameters parameters = make_parameters(device(), {at::kFloat});
  optim::AdamW optimizer(parameters, optim::AdamWOptions(0.1), ieee());
  set_gradients(parameters, 0, 1.0);
  at::Tensor last = parameters.back();
  last.mutable_grad() = torch::Tensor();
  last.mutable_grad() = torch::sparse_coo_tensor(last.sizes(), last.options().requires_grad(false));
  const at::Tensor before = parameters[0].detach().clone();
  EXPECT_THROW(optimizer.step(), c10::ValueError);
  EXPECT_TRUE(at::equal(before, parameters[0]));
  EXPECT_TRUE(optimizer.state().empty());
}

}  // namespace
}  // namespace torchamp
