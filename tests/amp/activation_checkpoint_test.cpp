// activation_checkpoint: the same gradients as without it, bit for bit, for less memory.

#include "torchamp/amp/activation_checkpoint.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/train/meter.h"

namespace torchamp::test {
namespace {

using amp::activation_checkpoint;
using amp::Autocast;

// Runs a body as it is, or under a checkpoint.
struct Plain {
  template <typename F, typename... Inputs>
  auto operator()(F f, Inputs... inputs) const {
    return f(inputs...);
  }
};
struct Checkpointed {
  template <typename F, typename... Inputs>
  auto operator()(F f, Inputs... inputs) const {
    return activation_checkpoint(f, inputs...);
  }
};

// What a run left: everything must be equal in bits with and without checkpoint.
using Trace = std::vector<at::Tensor>;

void expect_same(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << "tensor " << i;
    if (a[i].defined()) {
      EXPECT_EQ(a[i].scalar_type(), b[i].scalar_type()) << "tensor " << i;
      EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i << "\n" << a[i] << "\n" << b[i];
    }
  }
}

// `experiment(run, low)` with and without checkpoint, without region and in both types, with
// backward outside and inside.
template <typename Experiment>
void expect_same_in_every_state(Experiment experiment) {
  for (const auto low : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool backward_inside : {false, true}) {
      SCOPED_TRACE(c10::str(low, backward_inside ? ", backward inside" : ", backward outside"));
      const auto run = [&](auto mode) {
        torch::manual_seed(7);
        std::optional<Autocast> region(std::in_place, at::kCPU,
                                       low == at::kFloat ? at::kBFloat16 : low,
                                       amp::AutocastOptions{.enabled = low != at::kFloat});
        return experiment(mode, [&] {
          if (!backward_inside) {
            region.reset();
          }
        });
      };
      expect_same(run(Plain()), run(Checkpointed()));
    }
  }
}

struct Net : torch::nn::Module {
  Net() {
    register_module("a", a);
    register_module("b", b);
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) {
    return b(torch::dropout(torch::relu(norm(a(x))), 0.5, is_training()));
  }
  torch::nn::Linear a{6, 16};
  torch::nn::BatchNorm1d norm{16};
  torch::nn::Linear b{16, 4};
};

void append_grads(Trace& trace, const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) {
    trace.push_back(parameter.grad());
  }
}

TEST(ActivationCheckpoint, GivesTheSameBitsWithDropoutAndParameters) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto net = std::make_shared<Net>();
    const auto x = torch::randn({5, 6}).requires_grad_();
    const auto h = torch::tanh(x);
    const auto y = run([net](const at::Tensor& in) { return net->forward(in); }, h);
    const auto loss = torch::dropout(y, 0.3, true).to(at::kFloat).pow(2).sum();
    end_region();
    loss.backward();
    Trace trace{y.detach(), loss.detach(), x.grad(), torch::rand(3)};  // and the next draw
    append_grads(trace, *net);
    return trace;
  });
}

TEST(ActivationCheckpoint, ReachesParametersWhenNoInputRequiresAGradient) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto net = std::make_shared<Net>();
    const auto y =
        run([net](const at::Tensor& in) { return net->forward(in); }, torch::randn({5, 6}));
    end_region();
    y.to(at::kFloat).sum().backward();
    Trace trace;
    append_grads(trace, *net);
    return trace;
  });
}

TEST(ActivationCheckpoint, SharesAWeightWithTheRestOfTheRegion) {
  // One cast serves all uses of a weight in a region, so that their gradients meet in the low type.
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto early = torch::randn({8, 8}).requires_grad_();  // used before, inside and after
    const auto late = torch::randn({8, 8}).requires_grad_();   // first used inside, and after
    const auto twice = torch::randn({8, 8}).requires_grad_();  // used inside, two times
    auto h = torch::mm(torch::randn({8, 8}), early);
    h = run(
        [early, late, twice](const at::Tensor& in) {
          const auto middle = torch::mm(torch::mm(torch::tanh(in), twice), twice);
          return torch::mm(torch::mm(middle, early), late);
        },
        h);
    h = torch::mm(torch::mm(h, early), late);
    end_region();
    h.to(at::kFloat).pow(2).mean().backward();
    return Trace{h.detach(), early.grad(), late.grad(), twice.grad()};
  });
}

TEST(ActivationCheckpoint, KnowsTransposedWeightsToo) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    torch::nn::Linear linear(4, 4);
    const auto body = [linear](const at::Tensor& in) mutable { return linear(in).relu(); };
    const auto y = linear(run(body, linear(torch::randn({3, 4}))));
    end_region();
    y.to(at::kFloat).pow(2).sum().backward();
    return Trace{linear->weight.grad(), linear->bias.grad()};
  });
}

TEST(ActivationCheckpoint, TakesAndGivesTensorsInManyForms) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto x = torch::randn({3, 3}).requires_grad_();
    const auto y = torch::randn({3, 3}).requires_grad_();
    const auto still = torch::randn({3, 3});
    using Named = std::map<std::string, at::Tensor>;
    const auto f = [](const std::vector<at::Tensor>& list, std::optional<at::Tensor> maybe,
                      std::optional<at::Tensor> none, double factor, const std::string& name,
                      std::vector<int64_t> shape) {
      auto sum = torch::mm(list[0], list[1]) * factor;
      if (maybe.has_value()) {
        sum = torch::mm(sum, *maybe);
      }
      EXPECT_FALSE(none.has_value());
      return std::tuple(Named{{name, sum.sigmoid()}}, sum.argmax(1), std::optional(sum.exp()),
                        std::vector<at::Tensor>{sum.reshape(shape), at::Tensor()}, factor);
    };
    const auto [named, index, exp, list, factor] =
        run(f, std::vector<at::Tensor>{x, y}, std::optional(still), std::optional<at::Tensor>(),
            0.25, std::string("out"), std::vector<int64_t>{9});
    EXPECT_EQ(factor, 0.25);
    EXPECT_FALSE(index.requires_grad());
    EXPECT_FALSE(list[1].defined());
    end_region();
    // exp is not used: its gradient is undefined.
    (named.at("out").to(at::kFloat).sum() + list[0].to(at::kFloat).pow(2).sum()).backward();
    return Trace{named.at("out").detach(), index,    exp->detach(),
                 list[0].detach(),         x.grad(), y.grad()};
  });
}

TEST(ActivationCheckpoint, TakesAModuleInPlaceOfAFunction) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    torch::nn::Linear linear(3, 3);
    torch::nn::Linear other(3, 3);
    const auto y = run(other, run(linear, torch::randn({2, 3})));
    end_region();
    y.to(at::kFloat).pow(2).sum().backward();
    Trace trace;
    append_grads(trace, *linear);
    append_grads(trace, *other);
    return trace;
  });
}

TEST(ActivationCheckpoint, TakesTheSameTensorTwiceAndCapturedOnes) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto x = torch::randn({3, 3}).requires_grad_();
    const auto captured = torch::sin(x);
    const auto frozen = torch::randn({3, 3});
    const auto f = [captured, frozen](const at::Tensor& a, const at::Tensor& b) {
      return torch::mm(a, b) + torch::mm(captured, frozen) * captured;
    };
    const auto y = run(f, x, x);
    end_region();
    y.to(at::kFloat).pow(2).sum().backward();
    return Trace{x.grad()};
  });
}

TEST(ActivationCheckpoint, Nests) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto net = std::make_shared<Net>();
    const auto v = torch::randn({4, 4}).requires_grad_();
    const auto w = torch::randn({4, 4}).requires_grad_();
    const auto inner = [net](const at::Tensor& in) { return net->forward(in); };
    const auto middle = [=](const at::Tensor& in) {
      return torch::mm(torch::dropout(run(inner, in * 2), 0.2, true), v);
    };
    const auto outer = [=](const at::Tensor& in) { return torch::mm(run(middle, in), v).tanh(); };
    const auto x = torch::randn({5, 6}).requires_grad_();
    const auto y = torch::mm(run(outer, x), w);
    end_region();
    y.to(at::kFloat).pow(2).sum().backward();
    Trace trace{x.grad(), v.grad(), w.grad(), torch::rand(2)};
    append_grads(trace, *net);
    return trace;
  });
}

// The first gradients are the same bits; the second ones sum the same terms in another order.
TEST(ActivationCheckpoint, GivesGradientsOfGradients) {
  const auto run = [](auto mode, at::ScalarType type) {
    torch::manual_seed(2);
    const auto x = torch::randn({4, 4}, type == at::kDouble ? type : at::kFloat).requires_grad_();
    const auto w = torch::randn({4, 4}, x.options().requires_grad(false)).requires_grad_();
    at::Tensor y;
    {
      const Autocast region(at::kCPU, at::kBFloat16, {.enabled = type == at::kBFloat16});
      const auto inner = [w](const at::Tensor& in) { return torch::tanh(torch::mm(in, w)); };
      const auto outer = [=](const at::Tensor& in) { return torch::mm(mode(inner, in).exp(), w); };
      y = mode(outer, torch::sin(x));
    }
    EXPECT_EQ(y.scalar_type(), type);
    const auto first = torch::autograd::grad({y.to(x.scalar_type()).sum()}, {x, w}, {},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    (first[0].pow(2).sum() + first[1].pow(3).sum()).backward();
    return Trace{first[0].detach(), first[1].detach(), x.grad(), w.grad()};
  };
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto plain = run(Plain(), type);
    const auto checkpointed = run(Checkpointed(), type);
    expect_same({plain[0], plain[1]}, {checkpointed[0], checkpointed[1]});
    const double unit = type == at::kDouble ? 0x1p-53 : type == at::kFloat ? 0x1p-24 : 0x1p-8;
    for (const size_t i : {2U, 3U}) {
      // Sums of about ten rounded terms.
      EXPECT_LE((plain[i] - checkpointed[i]).abs().max().item<double>(),
                10 * unit * plain[i].abs().max().item<double>())
          << type << " tensor " << i;
    }
  }
}

TEST(ActivationCheckpoint, ServesGradAndChosenInputsAndHooks) {
  expect_same_in_every_state([](auto run, const auto& end_region) {
    const auto x = torch::randn({4, 4}).requires_grad_();
    const auto w = torch::randn({4, 4}).requires_grad_();
    const auto v = torch::randn({4, 4}).requires_grad_();
    int hooks = 0;
    w.register_hook([&hooks](const at::Tensor& gradient) {
      ++hooks;
      return gradient * 2;
    });
    const auto y = run([w, v](const at::Tensor& in) { return torch::mm(torch::mm(in, w), v); }, x)
                       .to(at::kFloat)
                       .pow(2)
                       .sum();
    end_region();
    const auto asked = torch::autograd::grad({y}, {w}, {}, /*retain_graph=*/true)[0];
    EXPECT_EQ(hooks, 1);
    EXPECT_FALSE(w.grad().defined() || x.grad().defined() || v.grad().defined());
    y.backward({}, /*retain_graph=*/true, /*create_graph=*/false, std::vector<at::Tensor>{v});
    EXPECT_FALSE(w.grad().defined() || x.grad().defined());
    y.backward();
    EXPECT_EQ(hooks, 2);
    return Trace{asked, w.grad(), x.grad(), v.grad()};
  });
}

TEST(ActivationCheckpoint, GivesBackAnInputAsACopy) {
  const auto x = torch::randn({2, 2}).requires_grad_();
  const auto h = x * 2;
  const auto [same, part, doubled] =
      activation_checkpoint([](const at::Tensor& in) { return std::tuple(in, in[0], in * 2); }, h);
  EXPECT_FALSE(same.is_alias_of(h));
  EXPECT_FALSE(part.is_alias_of(h));
  same.mul_(3);  // in place on the output: gradient 6 by this way, 2 by part, 4 by doubled
  (same.sum() + part.sum() + doubled.sum()).backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::tensor({{12.0F, 12.0F}, {10.0F, 10.0F}})));
}

TEST(ActivationCheckpoint, RunsPlainlyWhereNothingNeedsAGradient) {
  int runs = 0;
  const auto f = [&runs](const at::Tensor& in) {
    ++runs;
    return in * 2;
  };
  EXPECT_FALSE(activation_checkpoint(f, torch::ones(2)).requires_grad());
  const auto x = torch::ones(2).requires_grad_();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(activation_checkpoint(f, x).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(activation_checkpoint(f, x).is_inference());
  }
  EXPECT_EQ(runs, 3);
  const auto half_off = activation_checkpoint(
      [](const at::Tensor& in) {
        at::Tensor factor;
        {
          const torch::NoGradGuard no_grad;
          factor = in * 3;
        }
        return in * factor;
      },
      x);
  half_off.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 3.0F)));  // the factor counts as a constant
}

// Case 51.
TEST(ActivationCheckpoint, RecomputesInTheRegionOfForward) {
  for (const auto low : {at::kBFloat16, at::kHalf}) {
    for (const bool used_before : {false, true}) {
      const Warnings warnings;
      torch::nn::Linear linear(4, 4);
      const auto x = torch::ones({2, 4}).requires_grad_();
      std::vector<std::tuple<at::ScalarType, bool, bool>> seen;
      at::Tensor y;
      {
        const Autocast region(at::kCPU, low, {.cache_enabled = used_before});
        at::Tensor before;
        if (used_before) {
          before = at::linear(x, linear->weight, linear->bias);
        }
        y = activation_checkpoint(
            [&seen, linear](const at::Tensor& in) {
              auto out = at::linear(in, linear->weight, linear->bias);
              seen.emplace_back(out.scalar_type(), at::autocast::is_autocast_cache_enabled(),
                                torch::GradMode::is_enabled());
              return out;
            },
            x);
        if (used_before) {
          y = y + before;
        }
      }
      y.sum().backward();
      ASSERT_EQ(seen.size(), 2U);
      EXPECT_EQ(seen[0], std::tuple(low, used_before, true));
      EXPECT_EQ(seen[1], seen[0]);
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      EXPECT_EQ(linear->weight.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(
          torch::equal(linear->weight.grad(), torch::full({4, 4}, used_before ? 4.0F : 2.0F)));
      EXPECT_TRUE(warnings.texts().empty());
    }
  }
}

TEST(ActivationCheckpoint, DropsTheActivations) {
  // Ten layers over 1 MiB each: without, tanh keeps its output and mul its input.
  const auto peak_kept = [](auto run) {
    const auto x = torch::randn({512, 512}).requires_grad_();
    train::TensorMemoryMeter meter;
    const auto before = meter.current_bytes();
    const auto y = run(
        [](at::Tensor h) {
          for (int i = 0; i < 10; ++i) {
            h = torch::tanh(h) * 1.5;
          }
          return h;
        },
        x);
    return meter.current_bytes() - before;
  };
  const int64_t mib = 1 << 20;
  EXPECT_GE(peak_kept(Plain()), 11 * mib);
  EXPECT_LE(peak_kept(Checkpointed()), mib + (64 << 10));  // the output, and generator states
}

TEST(ActivationCheckpoint, TrainsWithTheScalerToTheSameWeights) {
  const auto train = [](auto run) {
    torch::manual_seed(3);
    const auto net = std::make_shared<Net>();
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    amp::GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Autocast region(at::kCPU, at::kHalf);
        auto x = torch::randn({5, 6});
        if (step == 4) {
          x = x / 0;  // one skipped step
        }
        const auto y = run([net](const at::Tensor& in) { return net->forward(in); }, x);
        loss = torch::mse_loss(y, torch::zeros({5, 4}));
      }
      scaler.scale(loss).backward();
      EXPECT_EQ(scaler.step(optimizer).applied(), step != 4);
      scaler.update();
    }
    Trace weights;
    for (const auto& parameter : net->parameters()) {
      weights.push_back(parameter.detach().clone());
    }
    return weights;
  };
  expect_same(train(Plain()), train(Checkpointed()));
}

TEST(ActivationCheckpoint, RunsBackwardOnAnotherThread) {
  const auto run = [](auto mode) {
    torch::manual_seed(5);
    const auto net = std::make_shared<Net>();
    at::Tensor loss;
    {
      const Autocast region(at::kCPU, at::kBFloat16);
      const auto f = [net](const at::Tensor& in) { return net->forward(in); };
      loss = mode(f, torch::randn({5, 6}).requires_grad_().sin()).to(at::kFloat).pow(2).sum();
    }
    std::thread([&] { loss.backward(); }).join();
    Trace trace;
    append_grads(trace, *net);
    return trace;
  };
  expect_same(run(Plain()), run(Checkpointed()));
}

TEST(ActivationCheckpoint, RefusesASecondBackwardUnlessRetained) {
  const auto x = torch::ones({2, 2}).requires_grad_();
  const auto make = [&] {
    return activation_checkpoint([](const at::Tensor& in) { return in * in; }, x).sum();
  };
  auto loss = make();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2, 2}, 4.0F)));
  auto once = activation_checkpoint([](const at::Tensor& in) { return in * in; }, x);
  once.backward(torch::ones({2, 2}));
  expect_contains(error_of([&] { once.backward(torch::ones({2, 2})); }), "a second time");
}

TEST(ActivationCheckpoint, SaysWhatChangedBetweenForwardAndBackward) {
  const auto x = torch::ones({2, 2}).requires_grad_();
  const auto other = torch::ones({2, 2}).requires_grad_();
  const auto changing = [&](const std::function<std::vector<at::Tensor>(int, at::Tensor)>& f) {
    int run = 0;
    const auto y = activation_checkpoint([&](const at::Tensor& in) { return f(run++, in); }, x);
    return error_of([&] { y[0].sum().backward(); });
  };
  expect_contains(changing([](int run, const at::Tensor& in) {
                    return std::vector<at::Tensor>(static_cast<size_t>(run) + 1, in * 2);
                  }),
                  "f gives 2 tensors in backward and gave 1 in forward");
  expect_contains(changing([](int run, const at::Tensor& in) {
                    return std::vector<at::Tensor>{(in * 2).slice(0, run)};
                  }),
                  "Output 0 of f is Float of shape [1, 2] on cpu in backward and was Float of "
                  "shape [2, 2] on cpu in forward");
  expect_contains(changing([](int run, const at::Tensor& in) {
                    return std::vector<at::Tensor>{(in * 2).to(run == 0 ? at::kFloat : at::kHalf)};
                  }),
                  "Output 0 of f is Half");
  expect_contains(changing([](int run, const at::Tensor& in) {
                    return std::vector<at::Tensor>{run == 0 ? in * 2 : in.detach() * 2};
                  }),
                  "without a gradient in backward");
  expect_contains(changing([&](int run, const at::Tensor& in) {
                    return std::vector<at::Tensor>{run == 0 ? in * 2 : in * other};
                  }),
                  "f uses in backward a parameter of shape [2, 2] that it did not use in forward");
}

TEST(ActivationCheckpoint, RefusesInPlaceChanges) {
  const auto x = torch::ones({2, 2}).requires_grad_();
  const auto w = torch::ones({2, 2}).requires_grad_();
  auto h = x * 1;
  expect_contains(
      error_of([&] { activation_checkpoint([](at::Tensor in) { return in.mul_(2); }, h); }),
      "f changed its input tensor 0 in place");
  h = x * 1;
  auto y = activation_checkpoint([w](const at::Tensor& in) { return torch::mm(in, w); }, h);
  h.mul_(2);
  expect_contains(error_of([&] { y.sum().backward(); }), "modified by an inplace operation");
  y = activation_checkpoint([w](const at::Tensor& in) { return torch::mm(in, w); }, x);
  {
    const torch::NoGradGuard no_grad;
    w.mul_(2);
  }
  expect_contains(error_of([&] { y.sum().backward(); }),
                  "A parameter of shape [2, 2] that f uses was changed in place");
}

TEST(ActivationCheckpoint, KeepsThePolicyOfTheRegion) {
  const auto run = [](auto mode) {
    torch::manual_seed(9);
    const auto x = torch::randn({4, 4}).requires_grad_();
    std::vector<at::ScalarType> seen;
    at::Tensor y;
    {
      const Autocast region(at::kCPU, at::kBFloat16,
                            {.policy = amp::AutocastPolicy::strict(at::kCPU)});
      y = mode(
          [&seen](const at::Tensor& in) {
            const auto p = torch::softmax(torch::mm(in, in), 1);
            seen.push_back(p.scalar_type());
            return torch::mm(p, in);
          },
          x);
    }
    y.to(at::kFloat).pow(2).sum().backward();
    for (const auto type : seen) {
      EXPECT_EQ(type, at::kFloat);
    }
    return Trace{y.detach(), x.grad()};
  };
  expect_same(run(Plain()), run(Checkpointed()));
}

TEST(ActivationCheckpoint, HoldsInLongChainsAndDeepNests) {
  const auto x = torch::ones({2}).requires_grad_();
  auto y = x * 1;
  for (int i = 0; i < 3000; ++i) {
    y = activation_checkpoint([](const at::Tensor& in) { return in + 1; }, y);
  }
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({2})));
  y = at::Tensor();

  // Deeper than the engine runs on one thread.
  x.mutable_grad() = at::Tensor();
  std::function<at::Tensor(const at::Tensor&)> nested = [](const at::Tensor& in) { return in * 2; };
  for (int i = 0; i < 80; ++i) {
    nested = [nested](const at::Tensor& in) { return activation_checkpoint(nested, in); };
  }
  nested(x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 2.0F)));
}

TEST(ActivationCheckpoint, RefusesForwardModeTangents) {
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const auto dual =
        torch::_make_dual(torch::ones(2), torch::ones(2), static_cast<int64_t>(level));
    expect_contains(
        error_of([&] { activation_checkpoint([](const at::Tensor& in) { return in * 2; }, dual); }),
        "Input tensor 0 carries a tangent");
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST(ActivationCheckpoint, LeavesEverythingInOrderWhenFThrows) {
  torch::manual_seed(11);
  const auto x = torch::ones(2).requires_grad_();
  EXPECT_THROW(activation_checkpoint(
                   [](const at::Tensor& in) {
                     throw std::runtime_error("inside");
                     return in;
                   },
                   x),
               std::runtime_error);
  int runs = 0;
  at::Tensor y;
  {
    const Autocast region(at::kCPU);
    y = activation_checkpoint(
        [&runs](const at::Tensor& in) {
          const auto out = torch::dropout(in, 0.5, true);
          if (runs++ == 1) {
            throw std::runtime_error("again");
          }
          return out;
        },
        x);
  }
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const auto state = generator.get_state();
  EXPECT_THROW(y.sum().backward(), std::runtime_error);
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(torch::equal(generator.get_state(), state));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace torchamp::test
