// to_low_precision(): what it converts and refuses, the way back, state dicts, and gradients that
// add up in float32.

#include "torchamp/optim/low_precision.h"

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "amp/support.h"
#include "support/temporary_folder.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/optim/clip_grad_norm.h"
#include "torchamp/optim/ema.h"
#include "torchamp/optim/master_weights.h"
#include "torchamp/optim/sgd.h"
#include "torchamp/train/module_state.h"

namespace torchamp::optim {
namespace {

using detail::find_master;
using test::error_of;
using test::expect_contains;
using torch::kBFloat16;
using torch::kDouble;
using torch::kFloat;
using torch::kHalf;

namespace nn = torch::nn;
using Names = std::vector<std::string>;

// A bit of everything: a norm, an embedding, a parameter of its own.
struct Net : nn::Module {
  Net() {
    torch::manual_seed(4);
    embed = register_module("embed", nn::Embedding(10, 8));
    fc = register_module("fc", nn::Linear(8, 6));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    head = register_module("head", nn::Linear(6, 4));
    offset = register_parameter("offset", torch::randn({4, 4}));
    register_buffer("seen", torch::zeros({1}, torch::kLong));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    amp::Autocast region(torch::kCPU, kBFloat16);
    return head(torch::relu(norm(fc(embed(tokens))))).matmul(offset);
  }
  nn::Embedding embed{nullptr};
  nn::Linear fc{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
  at::Tensor offset;
};

at::Tensor tokens() { return torch::arange(6, torch::kLong).view({2, 3}); }

std::vector<at::Tensor> copies_of(const nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : module.parameters()) copies.push_back(parameter.clone());
  return copies;
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].scalar_type(), b[i].scalar_type()) << i;
    EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  }
}

std::vector<at::Tensor> exact_values(const nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) {
    values.push_back(full_precision(parameter));
  }
  return values;
}

// ---- choosing and converting ----

TEST(LowPrecision, ConvertsWhatAutocastCastsAndKeepsHandlesAndValues) {
  Net net;
  const std::vector<at::Tensor> handles = net.parameters();
  const std::vector<at::Tensor> before = copies_of(net);
  EXPECT_EQ(to_low_precision(net, kBFloat16), (Names{"fc.weight", "head.weight"}));
  EXPECT_EQ(net.fc->weight.scalar_type(), kBFloat16);
  EXPECT_TRUE(torch::equal(net.fc->weight, before[2].to(kBFloat16)));
  for (const at::Tensor& kept :
       {net.embed->weight, net.fc->bias, net.norm->weight, net.norm->bias, net.offset}) {
    EXPECT_EQ(kept.scalar_type(), kFloat);
  }
  const std::vector<at::Tensor> after = net.parameters();
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_TRUE(handles[i].is_same(after[i]));
    EXPECT_TRUE(handles[i].is_leaf() && handles[i].requires_grad());
  }
  expect_same(exact_values(net), before);
  EXPECT_EQ(to_low_precision(net, kBFloat16), Names{});
  expect_same(exact_values(net), before);
}

TEST(LowPrecision, GoesBackToTheExactFloats) {
  for (const auto dtype : {kBFloat16, kHalf}) {
    Net net;
    const std::vector<at::Tensor> before = copies_of(net);
    to_low_precision(net, dtype);
    net.forward(tokens()).sum().backward();
    ASSERT_EQ(net.fc->weight.grad().scalar_type(), dtype);
    EXPECT_EQ(to_full_precision(net), (Names{"fc.weight", "head.weight"}));
    expect_same(copies_of(net), before);
    EXPECT_EQ(find_master(net.fc->weight), nullptr);
    EXPECT_EQ(net.fc->weight.grad().scalar_type(), kFloat);
    EXPECT_EQ(to_full_precision(net), Names{});
    net.forward(tokens()).sum().backward();
  }
}

TEST(LowPrecision, ChangesBetweenThe16BitTypesExactly) {
  Net net;
  const std::vector<at::Tensor> before = copies_of(net);
  to_low_precision(net, kHalf);
  EXPECT_EQ(to_low_precision(net, kBFloat16), (Names{"fc.weight", "head.weight"}));
  EXPECT_EQ(net.fc->weight.scalar_type(), kBFloat16);
  expect_same(exact_values(net), before);
}

TEST(LowPrecision, GivesA16BitParameterAMasterOfItsOwnValue) {
  nn::Linear linear(8, 6);
  linear->to(kBFloat16);
  EXPECT_EQ(to_low_precision(*linear, kBFloat16), Names{"weight"});
  ASSERT_NE(find_master(linear->weight), nullptr);
  EXPECT_TRUE(torch::equal(full_precision(linear->weight), linear->weight.detach().to(kFloat)));
  EXPECT_EQ(find_master(linear->bias), nullptr);
}

TEST(LowPrecision, ConvertsFrozenParametersThatMayBeThawed) {
  nn::Linear linear(8, 6);
  linear->weight.requires_grad_(false);
  const at::Tensor before = linear->weight.clone();
  EXPECT_EQ(to_low_precision(*linear, kBFloat16), Names{"weight"});
  EXPECT_FALSE(linear->weight.requires_grad());
  linear->weight.requires_grad_(true);
  EXPECT_TRUE(torch::equal(full_precision(linear->weight), before));
}

TEST(LowPrecision, LeavesDoubleComplexAndBuffers) {
  nn::Linear doubles(4, 4);
  doubles->to(kDouble);
  EXPECT_EQ(to_low_precision(*doubles, kBFloat16), Names{});
  EXPECT_EQ(doubles->weight.scalar_type(), kDouble);
  nn::BatchNorm2d norm(3);
  EXPECT_EQ(to_low_precision(*norm, kBFloat16), Names{});
  EXPECT_EQ(norm->running_mean.scalar_type(), kFloat);
}

// Case 58: norm layers with 16-bit parameters fail in a region on a CPU.
TEST(LowPrecision, KeepsNormsFloat32SoThatARegionRuns) {
  nn::Sequential net(nn::Linear(4, 4), nn::LayerNorm(nn::LayerNormOptions({4})),
                     nn::BatchNorm1d(4));
  to_low_precision(*net, kBFloat16);
  const at::Tensor x = torch::randn({8, 4});
  {
    amp::Autocast region(torch::kCPU, kBFloat16);
    net->forward(x).sum().backward();
  }
  EXPECT_EQ(net[1]->as<nn::LayerNorm>()->weight.grad().scalar_type(), kFloat);
  net->to(kBFloat16);  // what a plain cast does instead
  amp::Autocast region(torch::kCPU, kBFloat16);
  EXPECT_NE(error_of([&] { net[1]->as<nn::LayerNorm>()->forward(x); }), "");
}

TEST(LowPrecision, KeepsASharedParameterThatOneOwnerNeedsInFloat32) {
  nn::Linear head(nn::LinearOptions(6, 6).bias(false));
  nn::Module root;
  root.register_module("head", head.ptr());
  root.register_module("table", std::make_shared<nn::Module>())
      ->register_parameter("weight", head->weight);
  EXPECT_EQ(to_low_precision(root, kBFloat16), Names{});
  EXPECT_EQ(head->weight.scalar_type(), kFloat);
}

TEST(LowPrecision, ConvertsASharedParameterOnce) {
  nn::Linear a(nn::LinearOptions(6, 6).bias(false));
  nn::Module root;
  root.register_module("a", a.ptr());
  root.register_module("b", a.ptr());
  EXPECT_EQ(to_low_precision(root, kBFloat16), Names{"a.weight"});
  to_full_precision(root);
  EXPECT_EQ(to_low_precision(root, kBFloat16, {.keep = {"b.weight"}}), Names{});
}

TEST(LowPrecision, KeepsAndAddsWhatTheUserNames) {
  Net first;
  EXPECT_EQ(to_low_precision(first, kBFloat16, {.keep = {"head.weight"}}), Names{"fc.weight"});
  Net second;
  EXPECT_EQ(to_low_precision(second, kBFloat16, {.keep = {"head"}}), Names{"fc.weight"});
  Net third;
  EXPECT_EQ(to_low_precision(third, kBFloat16, {.keep = {"h*d.*"}}), Names{"fc.weight"});
  Net fourth;
  EXPECT_EQ(to_low_precision(fourth, kBFloat16, {.also = {"offset", "fc"}}),
            (Names{"offset", "fc.weight", "fc.bias", "head.weight"}));
  Net fifth;
  EXPECT_EQ(to_low_precision(fifth, kBFloat16, {.keep = {"*"}, .also = {"offset"}}), Names{});
}

TEST(LowPrecision, RefusesWithOneSentenceAndChangesNothing) {
  Net net;
  const std::vector<at::Tensor> before = copies_of(net);
  const auto refusal = [&](at::ScalarType dtype, const LowPrecisionOptions& options) {
    const std::string text =
        error_of<c10::ValueError>([&] { to_low_precision(net, dtype, options); });
    expect_same(copies_of(net), before);
    return text;
  };
  expect_contains(refusal(kFloat, {}), "The dtype Float came; BFloat16 and Half are accepted");
  expect_contains(refusal(torch::kLong, {}), "The dtype Long came");
  expect_contains(refusal(kBFloat16, {.keep = {"head.weigth"}}),
                  "'head.weigth' in keep matches no parameter");
  expect_contains(refusal(kBFloat16, {.keep = {"head.weigth"}}), "Did you mean 'head.weight'");
  expect_contains(refusal(kBFloat16, {.keep = {""}}), "matches no parameter");
  expect_contains(refusal(kBFloat16, {.also = {"nothing*"}}), "'nothing*' in also");
}

TEST(LowPrecision, RefusesParametersWithoutARoomForMasters) {
  nn::Module odd;
  odd.register_parameter("d", torch::ones({2}, kDouble));
  odd.register_parameter("gaps", torch::ones({4, 4}, kBFloat16).slice(1, 0, 4, 2));
  const auto refusal = [&](const std::string& name) {
    return error_of<c10::ValueError>([&] { to_low_precision(odd, kBFloat16, {.also = {name}}); });
  };
  expect_contains(refusal("d"), "'d' in also is Double");
  expect_contains(refusal("gaps"), "The memory of 'gaps', BFloat16 of sizes [4, 2]");
}

// ---- copies and files ----

TEST(LowPrecision, GivesACloneTheRoundedWeightsAndNoMaster) {
  nn::Linear linear(8, 6);
  const at::Tensor before = linear->weight.clone();
  to_low_precision(*linear, kBFloat16);
  const auto clone = std::dynamic_pointer_cast<nn::LinearImpl>(linear->clone());
  EXPECT_EQ(clone->weight.scalar_type(), kBFloat16);
  EXPECT_EQ(find_master(clone->weight), nullptr);
  EXPECT_TRUE(torch::equal(full_precision(clone->weight), before.to(kBFloat16).to(kFloat)));
  to_low_precision(*clone, kBFloat16);
  load_full_state_dict(*clone, full_state_dict(*linear));
  EXPECT_TRUE(torch::equal(full_precision(clone->weight), before));
}

TEST(LowPrecision, TakesWhatTorchLoadReadsForTheWeight) {
  nn::Linear linear(8, 6);
  to_low_precision(*linear, kBFloat16);
  std::stringstream file;
  torch::save(linear, file);
  nn::Linear another(8, 6);
  to_low_precision(*another, kBFloat16);
  torch::load(another, file);
  EXPECT_TRUE(torch::equal(another->weight, linear->weight));
  EXPECT_TRUE(torch::equal(full_precision(another->weight), linear->weight.detach().to(kFloat)));
  const auto master = find_master(another->weight);
  ASSERT_NE(master, nullptr);
  master->sync(another->weight);
  EXPECT_TRUE(torch::equal(full_precision(another->weight), linear->weight.detach().to(kFloat)));
}

TEST(FullStateDict, HoldsTheExactFloatsByPythonsNames) {
  Net net;
  const base::StateDict before = full_state_dict(net);
  to_low_precision(net, kBFloat16);
  const base::StateDict after = full_state_dict(net);
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(base::to_string(after.entries()[0].key), "'offset'");
  EXPECT_EQ(base::to_string(after.entries()[1].key), "'seen'");
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after.entries()[i].key, before.entries()[i].key);
    const at::Tensor& value = after.entries()[i].value.to_tensor("");
    EXPECT_TRUE(torch::equal(value, before.entries()[i].value.to_tensor("")));
    EXPECT_FALSE(value.requires_grad());
  }
}

TEST(FullStateDict, GoesThroughAFileBothWays) {
  const TemporaryFolder folder;
  for (const auto dtype : {kBFloat16, kHalf}) {
    Net with;
    const std::vector<at::Tensor> exact = copies_of(with);
    to_low_precision(with, dtype);
    checkpoint::save(folder / "model.pt", train::module_state_dict(with));
    const base::StateDict saved = checkpoint::load(folder / "model.pt");

    Net without;
    for (const at::Tensor& parameter : without.parameters()) parameter.detach().zero_();
    train::load_module_state_dict(without, saved);
    expect_same(copies_of(without), exact);

    Net another;
    to_low_precision(another, dtype);
    for (const at::Tensor& parameter : another.parameters()) parameter.detach().zero_();
    load_full_state_dict(another, saved);
    expect_same(exact_values(another), exact);
    EXPECT_TRUE(torch::equal(another.fc->weight, with.fc->weight));
  }
}

TEST(FullStateDict, RefusesAnotherModelsAndChangesNothing) {
  Net net;
  to_low_precision(net, kBFloat16);
  const std::vector<at::Tensor> before = exact_values(net);
  base::StateDict state = full_state_dict(net);
  state.set("fc.weight", torch::zeros({6, 9}));
  state.set("head.bias", torch::zeros({4}, torch::kLong));
  state.erase("offset");
  state.set("extra", 1);
  const std::string text =
      error_of<base::CheckpointError>([&] { load_full_state_dict(net, state); });
  expect_contains(text, "1 missing ('offset')");
  expect_contains(text, "1 unexpected ('extra')");
  expect_contains(text, "'fc.weight' is Float[6, 9], not BFloat16[6, 8]");
  expect_contains(text, "'head.bias' is Long[4], not Float[4]");
  expect_same(exact_values(net), before);
}

TEST(FullPrecision, GivesAndSetsOneParameter) {
  Net net;
  to_low_precision(net, kBFloat16);
  const at::Tensor values = torch::randn({6, 8});
  for (const at::Tensor& parameter : {net.fc->weight, net.offset}) {
    const at::Tensor fitting = torch::randn(parameter.sizes());
    set_full_precision(parameter, fitting);
    EXPECT_TRUE(torch::equal(full_precision(parameter), fitting));
  }
  const at::Tensor plain = torch::ones({2}, kBFloat16);
  EXPECT_EQ(full_precision(plain).scalar_type(), kFloat);
  expect_contains(
      error_of<c10::ValueError>([&] { set_full_precision(net.offset, torch::ones({3})); }),
      "the same sizes are accepted");
  expect_contains(error_of<c10::ValueError>([] { full_precision(at::Tensor()); }), "undefined");
}

TEST(FullPrecision, IsWhatAnEmaAveragesAndPutsBack) {
  nn::Linear linear(8, 6);
  const at::Tensor start = linear->weight.detach().clone();
  to_low_precision(*linear, kBFloat16);
  Ema ema(*linear, {.decay = 0.5});
  ema.update();
  const at::Tensor next = torch::randn({6, 8});
  set_full_precision(linear->weight, next);
  ema.update();
  const at::Tensor average = start + 0.5 * (next - start);
  EXPECT_TRUE(
      torch::allclose(ema.state_dict().at("module.weight").to_tensor(), average, 1e-6, 1e-7));
  {
    const EmaWeights averaged(ema);
    EXPECT_TRUE(torch::equal(linear->weight, average.to(kBFloat16)));
  }
  EXPECT_TRUE(torch::equal(full_precision(linear->weight), next));
}

// ---- steps by LibTorch's own functions ----

struct Lookup : nn::Module {
  Lookup() {
    torch::manual_seed(6);
    table = register_module("table", nn::Embedding(nn::EmbeddingOptions(8, 6).sparse(true)));
    fc = register_module("fc", nn::Linear(6, 4));
  }
  nn::Embedding table{nullptr};
  nn::Linear fc{nullptr};
};

std::vector<at::Tensor> train_with_a_sparse_table(bool has_masters, bool unscales) {
  Lookup net;
  if (has_masters) to_low_precision(net, kBFloat16);
  SGD optimizer(net.parameters(), SGDOptions(0.1));
  amp::GradScaler scaler({.init_scale = 64, .enabled = unscales});
  for (int step = 0; step < 20; ++step) {
    net.zero_grad();
    at::Tensor loss;
    {
      amp::Autocast region(torch::kCPU, kBFloat16);
      loss = net.fc(net.table(torch::tensor({1, 3, step % 8}))).to(kFloat).square().sum();
    }
    scaler.scale(loss).backward();
    if (unscales) {
      scaler.unscale_(optimizer);
      clip_grad_norm_({net.fc->weight, net.fc->bias}, 0.5);
    }
    scaler.step(optimizer);
    scaler.update();
  }
  if (has_masters) {
    EXPECT_EQ(net.fc->weight.scalar_type(), kBFloat16);
    EXPECT_EQ(net.fc->weight.grad().scalar_type(), kBFloat16);
    EXPECT_TRUE(torch::equal(net.fc->weight, full_precision(net.fc->weight).to(kBFloat16)));
  }
  return exact_values(net);
}

TEST(OperatorStep, ClipsAndConsumesGradientsToo) {
  const auto updated = [](bool clips_itself) {
    Lookup net;
    to_low_precision(net, kBFloat16);
    FusedOptions fused{.consume_gradients = clips_itself};
    if (clips_itself) fused.max_grad_norm = 0.5;
    SGD optimizer(net.parameters(), SGDOptions(0.1), fused);
    {
      amp::Autocast region(torch::kCPU, kBFloat16);
      net.fc(net.table(torch::tensor({1, 3}))).to(kFloat).square().sum().backward();
    }
    const at::Tensor norm = clips_itself ? at::Tensor() : clip_grad_norm_(net.parameters(), 0.5);
    optimizer.step();
    if (clips_itself) {
      EXPECT_GT(optimizer.last_grad_norm().item<float>(), 0.5F);
    }
    EXPECT_EQ(net.fc->weight.grad().defined(), !clips_itself);
    return exact_values(net);
  };
  expect_same(updated(true), updated(false));
}

TEST(OperatorStep, UpdatesTheExactWeights) {
  const test::Warnings warnings;  // that bfloat16 needs no scale
  for (const bool unscales : {false, true}) {
    expect_same(train_with_a_sparse_table(true, unscales),
                train_with_a_sparse_table(false, unscales));
  }
}

// ---- gradients ----

// A weight whose gradient is what the test says.
struct Weight {
  explicit Weight(at::ScalarType dtype = kBFloat16) {
    module.register_parameter("weight", torch::ones({2}));
    to_low_precision(module, dtype, {.also = {"weight"}});
  }
  at::Tensor parameter() const { return module.parameters()[0]; }
  void backward(float gradient) const {
    (parameter() * torch::full({2}, gradient, parameter().scalar_type())).sum().backward();
  }
  float grad() const { return parameter().grad()[0].item<float>(); }
  nn::Module module;
};

TEST(Accumulation, AddsInFloat32) {
  Weight weight;
  weight.backward(1.0F);
  EXPECT_EQ(weight.parameter().grad().scalar_type(), kBFloat16);
  EXPECT_EQ(main_grad(weight.parameter()).scalar_type(), kFloat);
  weight.backward(1.0F / 512);  // 1 + 2^-9 would be 1 in bfloat16
  weight.backward(1.0F / 512);
  EXPECT_EQ(weight.parameter().grad().scalar_type(), kFloat);
  EXPECT_EQ(weight.grad(), 1.0F + 1.0F / 256);
  EXPECT_TRUE(main_grad(weight.parameter()).is_same(weight.parameter().grad()));
}

TEST(Accumulation, BeginsAnewIn16Bits) {
  Weight weight;
  weight.backward(1.0F);
  weight.backward(1.0F);
  weight.module.zero_grad();
  EXPECT_FALSE(main_grad(weight.parameter()).defined());
  weight.backward(3.0F);
  EXPECT_EQ(weight.parameter().grad().scalar_type(), kBFloat16);
  weight.module.zero_grad(/*set_to_none=*/false);
  weight.backward(1.0F);
  weight.backward(1.0F / 512);
  EXPECT_EQ(weight.grad(), 1.0F + 1.0F / 512);
}

TEST(Accumulation, DoesNotCopyTheFirstGradient) {
  Weight weight;
  const void* address = nullptr;
  weight.parameter().register_hook(
      [&](const at::Tensor& gradient) { address = gradient.const_data_ptr(); });
  const at::Tensor factor = torch::ones({2}, kBFloat16);
  (weight.parameter() * factor).backward(torch::ones({2}, kBFloat16));
  EXPECT_EQ(weight.parameter().grad().const_data_ptr(), address);
}

TEST(Accumulation, KeepsAGraph) {
  Weight weight;
  const at::Tensor p = weight.parameter();
  const test::Warnings warnings;  // that create_graph makes a cycle, which the last line breaks
  for (int i = 0; i < 2; ++i) {
    (p * p * p).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  }
  EXPECT_EQ(p.grad().scalar_type(), kFloat);
  EXPECT_EQ(weight.grad(), 6.0F);  // twice 3 p^2 at 1
  const auto second = torch::autograd::grad({p.grad().sum()}, {p});
  EXPECT_EQ(second[0][0].item<float>(), 12.0F);  // twice 6 p
  p.mutable_grad().reset();
}

TEST(Accumulation, TakesSparseGradients) {
  nn::Embedding table(nn::EmbeddingOptions(4, 2).sparse(true));
  to_low_precision(*table, kBFloat16, {.also = {"weight"}});
  const auto backward = [&](float factor) {
    (table(torch::tensor({1, 1, 2})) * factor).sum().backward();
  };
  backward(1.0F);
  EXPECT_TRUE(table->weight.grad().is_sparse());
  backward(1.0F / 512);
  EXPECT_EQ(table->weight.grad().scalar_type(), kFloat);
  const at::Tensor dense = table->weight.grad().to_dense();
  EXPECT_EQ(dense[1][0].item<float>(), 2.0F + 2.0F / 512);
  EXPECT_EQ(dense[2][1].item<float>(), 1.0F + 1.0F / 512);
  EXPECT_EQ(dense[0][0].item<float>(), 0.0F);
}

TEST(Accumulation, SeesWhatAUsersHookMadeOfTheGradient) {
  Weight weight;
  weight.parameter().register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  weight.backward(1.0F);
  weight.backward(1.0F / 512);
  EXPECT_EQ(weight.grad(), 2.0F + 2.0F / 512);
}

TEST(Accumulation, IsNotTouchedByAGradientThatIsOnlyAskedFor) {
  Weight weight;
  weight.backward(1.0F);
  const auto asked = torch::autograd::grad({(weight.parameter() * 3).sum()}, {weight.parameter()});
  EXPECT_EQ(asked[0].scalar_type(), kBFloat16);
  EXPECT_EQ(weight.grad(), 1.0F);
}

TEST(Accumulation, CarriesFactorsThatWaitForTheOptimizer) {
  Weight weight;
  weight.backward(512.0F);
  multi_tensor::set_pending_factors(weight.parameter().grad(),
                                    {torch::tensor({1.0F / 512}), torch::tensor(0.5F)});
  EXPECT_EQ(main_grad(weight.parameter())[0].item<float>(), 0.5F);
  EXPECT_EQ(weight.grad(), 512.0F);
  weight.backward(1.0F);
  ASSERT_EQ(weight.parameter().grad().scalar_type(), kFloat);
  EXPECT_EQ(weight.grad(), 513.0F);
  EXPECT_EQ(main_grad(weight.parameter())[0].item<float>(), 513.0F / 1024);
}

TEST(Accumulation, GoesOnOverAConversion) {
  nn::Module module;
  const at::Tensor p = module.register_parameter("weight", torch::ones({2}));
  p.register_hook([](const at::Tensor& gradient) { return gradient * 1; });
  const at::Tensor before = (p * 1).sum();  // holds the accumulator that knows float32
  p.sum().backward();
  to_low_precision(module, kBFloat16, {.also = {"weight"}});
  EXPECT_EQ(p.grad().scalar_type(), kFloat);
  (p / 512).sum().backward();
  EXPECT_EQ(p.grad()[0].item<float>(), 1.0F + 1.0F / 512);
  to_full_precision(module);
  (p / 512).sum().backward();
  EXPECT_EQ(p.grad()[0].item<float>(), 1.0F + 1.0F / 256);
}

TEST(Accumulation, LosesNothingWhenTwoThreadsRunBackward) {
  Weight weight;
  weight.backward(0.0F);
  constexpr int kPasses = 500;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int pass = 0; pass < kPasses; ++pass) weight.backward(1.0F);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(weight.grad(), 2.0F * kPasses);
}

}  // namespace
}  // namespace torchamp::optim
