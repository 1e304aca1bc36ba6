// Update rules against loops in long double written from the papers. Each step begins at the state
// that the kernel left, so a bound covers one step; it counts roundings, u = 2^-24 each (f64:
// 2^-53).

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr int64_t kCount = 333;

using Real = long double;  // where it is no wider than double, f64 is not tested

// A value of the loop and how far the kernel's may lie from it.
struct Bounded {
  Real x = 0.0;
  Real off = 0.0;
};

Real rounding_unit(Storage storage) { return storage == Storage::kF64 ? 0x1p-53L : 0x1p-24L; }

std::vector<Storage> float_storages() {
  if (std::numeric_limits<Real>::digits < 64) return {Storage::kF32};
  return {Storage::kF32, Storage::kF64};
}

// How far 1 - beta^t, taken in double from a power rounded in double, lies from the truth.
Real correction_off(double beta, int64_t t) {
  const Real power = std::pow(static_cast<Real>(beta), static_cast<Real>(t));
  return 0x1p-53L * (1.0L + power / (1.0L - power));
}

void expect_within(const std::vector<double>& actual, const std::vector<Bounded>& expected,
                   const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    // Products of two errors are left out of the bounds: 1% covers them.
    ASSERT_LE(std::abs(actual[i] - expected[i].x), 1.01 * expected[i].off)
        << what << ", element " << i << ": " << actual[i] << " for " << expected[i].x;
  }
}

struct AdamCase {
  const char* name;
  bool decoupled, amsgrad;
  double lr, beta1, beta2, eps, decay;
};

// Kingma and Ba, algorithm 1, with Loshchilov and Hutter's decay or the classic one.
struct AdamLoop {
  AdamCase c;
  Real u;

  void step(int64_t t, Real g, Real p, Real m, Real v, Real v_max, Bounded* to) const {
    const Real step_size = c.lr / (1.0L - std::pow(Real{c.beta1}, static_cast<Real>(t)));
    const Real correction2 = 1.0L - std::pow(Real{c.beta2}, static_cast<Real>(t));
    Real grad = g, grad_off = 0.0, weight = p, weight_off = 0.0;
    if (c.decay != 0.0 && !c.decoupled) {
      grad = g + c.decay * p;
      grad_off = u * (std::abs(c.decay * p) + std::abs(grad));  // constant, sum
    } else if (c.decay != 0.0) {
      weight = p * (1.0L - Real{c.lr} * c.decay);
      weight_off = 2 * u * std::abs(weight);  // constant, product
    }
    const Real w1 = 1.0L - c.beta1, w2 = 1.0L - c.beta2;
    const Real m_next = m + w1 * (grad - m);
    // With beta1 < 1/2 the kernel takes the other side: g - b1 (g - m).
    const Real share = w1 < 0.5 ? w1 : c.beta1;
    const Real m_off = u * (w1 + share) * std::abs(grad - m) +  // constant, difference
                       u * std::abs(m_next) + grad_off;
    const Real v_next = c.beta2 * v + w2 * grad * grad;
    const Real v_off = 3 * u * v_next + 2 * w2 * std::abs(grad) * grad_off;
    const Real under = c.amsgrad ? std::max(v_max, v_next) : v_next;
    const Real under_off = under == v_next ? v_off : 0.0;
    const Real root = std::sqrt(under / correction2);
    // Root, quotient, its constant; eps, sum.
    const Real root_off = root * (under == 0.0L ? 0.0L : under_off / (2 * under)) +
                          (3 * u + correction_off(c.beta2, t) / 2 + 0x1p-53L) * root;
    const Real denominator = root + c.eps;
    const Real denominator_off = root_off + 2 * u * denominator;
    const Real update = step_size * m_next / denominator;
    const Real step_off = 3 * u + correction_off(c.beta1, t) + 0x1p-53L;
    const Real update_off = std::abs(update) * (step_off + denominator_off / denominator) +
                            step_size * m_off / denominator;
    const Real p_next = weight - update;
    to[0] = {p_next, weight_off + update_off + u * std::abs(p_next)};
    to[1] = {m_next, m_off};
    to[2] = {v_next, v_off};
    to[3] = {std::max(v_max, v_next), under_off};
  }
};

void expect_adam_follows(const KernelTable& table, const AdamCase& c, Storage storage) {
  const AdamLoop loop{c, rounding_unit(storage)};
  TestArray param(storage, random_numbers(20, kCount), 1), first(storage, kCount, 2);
  TestArray second(storage, kCount), largest(storage, kCount, 3);
  for (int64_t t = 1; t <= 60; ++t) {
    TestArray grad(storage, random_numbers(static_cast<uint64_t>(100 + t), kCount), 1);
    std::vector<Bounded> expected[4];
    const std::vector<double> g = grad.values(), p = param.values(), m = first.values(),
                              v = second.values(), v_max = largest.values();
    for (size_t i = 0; i < g.size(); ++i) {
      Bounded next[4];
      loop.step(t, g[i], p[i], m[i], v[i], v_max[i], next);
      for (int k = 0; k < 4; ++k) expected[k].push_back(next[k]);
    }
    table.adam(adam_rule(c.lr, c.beta1, c.beta2, c.eps, c.decay, c.decoupled, c.amsgrad, t),
               {grad.grad(),
                param.stream(),
                first.stream(),
                second.stream(),
                c.amsgrad ? largest.stream() : Stream{},
                {}},
               {0, kCount});
    const std::string what = std::string(table.name) + ", " + c.name + ", " + name_of(storage) +
                             ", step " + std::to_string(t);
    expect_within(param.values(), expected[0], what + ", param");
    expect_within(first.values(), expected[1], what + ", exp_avg");
    expect_within(second.values(), expected[2], what + ", exp_avg_sq");
    if (c.amsgrad) expect_within(largest.values(), expected[3], what + ", max_exp_avg_sq");
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(AdamFormula, FollowsTheLoop) {
  const AdamCase cases[] = {
      {"AdamW", true, false, 1e-2, 0.9, 0.999, 1e-8, 0.1},
      {"AdamW without decay", true, false, 1e-3, 0.9, 0.95, 1e-8, 0.0},
      {"AdamW, amsgrad", true, true, 1e-2, 0.9, 0.99, 1e-8, 0.01},
      {"Adam", false, false, 1e-2, 0.9, 0.999, 1e-8, 0.0},
      {"Adam with decay", false, false, 1e-2, 0.9, 0.999, 1e-6, 0.1},
      {"Adam with decay, amsgrad", false, true, 1e-2, 0.9, 0.99, 1e-8, 0.1},
      {"Adam, small beta1", false, false, 1e-2, 0.3, 0.9, 1e-3, 0.0},
      {"Adam, beta1 = 0", false, false, 1e-2, 0.0, 0.9, 1e-8, 0.0},
  };
  for (const KernelTable* table : tables_here()) {
    for (const AdamCase& c : cases) {
      for (const Storage storage : float_storages()) expect_adam_follows(*table, c, storage);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AdamFormula, RoundsOnceWhereTheFormulaSaysFma) {
  // A bound cannot see a sum that is rounded once more; Python's bits depend on it.
  for (const KernelTable* table : tables_here()) {
    const std::vector<float> g = random_numbers(21, kCount), p = random_numbers(22, kCount);
    const std::vector<float> m = random_numbers(23, kCount), v = random_squares(24, kCount);
    TestArray grad(Storage::kF32, g), param(Storage::kF32, p);
    TestArray first(Storage::kF32, m), second(Storage::kF32, v);
    table->adam(adam_rule(1e-2, 0.9, 0.999, 1e-8, 0.1, /*decoupled=*/false, false, 2),
                {grad.grad(), param.stream(), first.stream(), second.stream(), {}, {}},
                {0, kCount});
    const auto decay = static_cast<float>(0.1), beta2 = static_cast<float>(0.999);
    const auto w1 = static_cast<float>(1.0 - 0.9), w2 = static_cast<float>(1.0 - 0.999);
    for (size_t i = 0; i < g.size(); ++i) {
      const float decayed = std::fma(p[i], decay, g[i]);
      ASSERT_EQ(first.values()[i], std::fma(w1, decayed - m[i], m[i])) << table->name;
      ASSERT_EQ(second.values()[i], std::fma(w2 * decayed, decayed, v[i] * beta2)) << table->name;
    }
  }
}

TEST(SgdFormula, RoundsOnceWhereTheFormulaSaysFma) {
  for (const KernelTable* table : tables_here()) {
    const std::vector<float> g = random_numbers(25, kCount), p = random_numbers(26, kCount);
    const std::vector<float> b = random_numbers(27, kCount);
    TestArray grad(Storage::kF32, g), param(Storage::kF32, p), buffer(Storage::kF32, b);
    SgdRule rule;
    rule.weight_decay = 0.1;
    rule.momentum = 0.9;
    rule.one_minus_dampening = 0.7;
    rule.minus_lr = -0.01;
    rule.nesterov = true;
    table->sgd(rule, {grad.grad(), param.stream(), buffer.stream()}, {0, kCount});
    for (size_t i = 0; i < g.size(); ++i) {
      const float decayed = std::fma(p[i], 0.1F, g[i]);
      const float next = std::fma(decayed, 0.7F, b[i] * 0.9F);
      ASSERT_EQ(buffer.values()[i], next) << table->name;
      ASSERT_EQ(param.values()[i], std::fma(std::fma(next, 0.9F, decayed), -0.01F, p[i]))
          << table->name;
    }
  }
}

TEST(AdamFormula, AMasterIsUpdatedAsFloat32Is) {
  // The bits of float32 weights, whatever lies beside them.
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : {Storage::kBf16WithRest, Storage::kF16WithCopy}) {
      TestArray plain(Storage::kF32, random_numbers(30, kCount), 1);
      TestArray master(storage, random_numbers(30, kCount), 3);
      TestArray m1(Storage::kF32, kCount), m2(Storage::kF32, kCount);
      TestArray v1(Storage::kF32, kCount), v2(Storage::kF32, kCount);
      for (int64_t t = 1; t <= 50; ++t) {
        TestArray grad(Storage::kBf16, random_numbers(static_cast<uint64_t>(t), kCount));
        const AdamRule rule = adam_rule(1e-2, 0.9, 0.999, 1e-8, 0.1, true, false, t);
        table->adam(rule, {grad.grad(), plain.stream(), m1.stream(), v1.stream(), {}, {}},
                    {0, kCount});
        table->adam(rule, {grad.grad(), master.stream(), m2.stream(), v2.stream(), {}, {}},
                    {0, kCount});
        ASSERT_EQ(plain.values(), master.values()) << table->name << ", " << name_of(storage);
      }
    }
  }
}

struct SgdCase {
  const char* name;
  double lr, momentum, dampening, decay;
  bool nesterov;
};

void expect_sgd_follows(const KernelTable& table, const SgdCase& c, Storage storage) {
  const Real u = rounding_unit(storage);
  TestArray param(storage, random_numbers(40, kCount), 1), buffer(storage, kCount, 2);
  for (int64_t t = 1; t <= 60; ++t) {
    TestArray grad(storage, random_numbers(static_cast<uint64_t>(200 + t), kCount));
    std::vector<Bounded> params, buffers;
    const std::vector<double> g = grad.values(), p = param.values(), b = buffer.values();
    for (size_t i = 0; i < g.size(); ++i) {
      const Real d = g[i] + Real{c.decay} * p[i];
      const Real d_off = c.decay == 0.0 ? 0.0L : u * (std::abs(c.decay * p[i]) + std::abs(d));
      Bounded direction{d, d_off};
      if (c.momentum != 0.0) {
        Bounded next{d, d_off};
        if (t > 1) {
          const Real old = Real{c.momentum} * b[i], part = (1.0L - c.dampening) * d;
          next.x = old + part;
          next.off = 2 * u * std::abs(old) + u * std::abs(part) + u * std::abs(next.x) + d_off;
        }
        buffers.push_back(next);
        direction = next;
        if (c.nesterov) {
          direction.x = d + c.momentum * next.x;
          direction.off = d_off + u * std::abs(c.momentum * next.x) + c.momentum * next.off +
                          u * std::abs(direction.x);
        }
      }
      const Real p_next = p[i] - Real{c.lr} * direction.x;
      params.push_back(
          {p_next, u * std::abs(c.lr * direction.x) + c.lr * direction.off + u * std::abs(p_next)});
    }
    SgdRule rule;
    rule.weight_decay = c.decay;
    rule.momentum = c.momentum;
    rule.one_minus_dampening = 1.0 - c.dampening;
    rule.minus_lr = -c.lr;
    rule.nesterov = c.nesterov;
    rule.is_first = t == 1;
    table.sgd(rule, {grad.grad(), param.stream(), c.momentum != 0.0 ? buffer.stream() : Stream{}},
              {0, kCount});
    const std::string what = std::string(table.name) + ", " + c.name + ", " + name_of(storage) +
                             ", step " + std::to_string(t);
    expect_within(param.values(), params, what + ", param");
    if (c.momentum != 0.0) expect_within(buffer.values(), buffers, what + ", momentum_buffer");
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SgdFormula, FollowsTheLoop) {
  const SgdCase cases[] = {
      {"SGD", 0.1, 0.0, 0.0, 0.0, false},
      {"SGD with decay", 0.1, 0.0, 0.0, 0.01, false},
      {"SGD with momentum", 0.1, 0.9, 0.0, 0.0, false},
      {"SGD with momentum, dampening, decay", 0.05, 0.9, 0.5, 0.01, false},
      {"SGD with nesterov", 0.05, 0.9, 0.0, 0.01, true},
  };
  for (const KernelTable* table : tables_here()) {
    for (const SgdCase& c : cases) {
      for (const Storage storage : float_storages()) expect_sgd_follows(*table, c, storage);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SgdFormula, TheFirstBufferIsTheGradientWhateverWasThere) {
  for (const KernelTable* table : tables_here()) {
    TestArray grad(Storage::kF32, std::vector<float>(20, 2.0F)), param(Storage::kF32, 20);
    TestArray buffer(Storage::kF32, 20);
    for (int i = 0; i < 20; ++i) buffer.set(i, std::nan(""));  // as memory that nobody filled
    SgdRule rule;
    rule.momentum = 0.9;
    rule.one_minus_dampening = 0.5;
    rule.minus_lr = -0.25;
    rule.is_first = true;
    table->sgd(rule, {grad.grad(), param.stream(), buffer.stream()}, {0, 20});
    for (const double b : buffer.values()) EXPECT_EQ(b, 2.0);
    for (const double p : param.values()) EXPECT_EQ(p, -0.5);
  }
}

// You et al., algorithm 2: r = m^ / (sqrt(v^) + eps), x <- x - lr |x| / |r + wd x| (r + wd x).
void expect_lamb_follows(const KernelTable& table, double decay, Storage storage) {
  const double lr = 0.01, beta1 = 0.9, beta2 = 0.99, eps = 1e-6;
  const Real u = rounding_unit(storage);
  TestArray param(storage, random_numbers(50, kCount), 1), first(storage, kCount, 2);
  TestArray second(storage, kCount);
  for (int64_t t = 1; t <= 60; ++t) {
    TestArray grad(storage, random_numbers(static_cast<uint64_t>(300 + t), kCount));
    const std::vector<double> g = grad.values(), p = param.values(), m = first.values(),
                              v = second.values();
    std::vector<Bounded> firsts, seconds, directions, params;
    Bounded weight_squares, direction_squares;
    for (size_t i = 0; i < g.size(); ++i) {
      const Real m_next = Real{beta1} * m[i] + (1.0L - beta1) * g[i];
      const Real m_off = 2 * u * (1.0L - beta1) * std::abs(g[i] - m[i]) + u * std::abs(m_next);
      const Real v_next = Real{beta2} * v[i] + (1.0L - beta2) * g[i] * g[i];
      firsts.push_back({m_next, m_off});
      seconds.push_back({v_next, 3 * u * v_next});
      const Real correction1 = 1.0L - std::pow(Real{beta1}, static_cast<Real>(t));
      const Real correction2 = 1.0L - std::pow(Real{beta2}, static_cast<Real>(t));
      const Real denominator = std::sqrt(v_next / correction2) + eps;
      const Real r = m_next / correction1 / denominator;
      // Root of v (3/2), root, quotient, its constant, eps and sum: 6.5; m: constant, product,
      // quotient: 3.
      const Real constants_off =
          correction_off(beta1, t) + correction_off(beta2, t) / 2 + 2 * 0x1p-53L;
      const Real r_off =
          std::abs(r) * (9.5L * u + constants_off) + m_off / correction1 / denominator;
      const Real direction = r + Real{decay} * p[i];
      const Real off = r_off + u * std::abs(decay * p[i]) + u * std::abs(direction);
      directions.push_back({direction, off});
      weight_squares.x += Real{p[i]} * p[i];
      direction_squares.x += direction * direction;
      direction_squares.off += 2 * std::abs(direction) * off;
    }
    const double sums_off = static_cast<double>(kCount) * 0x1p-52;
    const LambRule rule = lamb_rule(beta1, beta2, eps, decay, t);
    const LambArrays arrays{grad.grad(), param.stream(), first.stream(), second.stream()};
    const LambNorms norms = table.lamb_moments(rule, arrays, {0, kCount});
    expect_within({norms.weight, norms.direction},
                  {{weight_squares.x, weight_squares.x * sums_off},
                   {direction_squares.x, direction_squares.off + direction_squares.x * sums_off}},
                  std::string(table.name) + ", sums of squares");
    EXPECT_EQ(param.values(), p) << "lamb_moments() moved a parameter";
    const double step = lr * std::sqrt(norms.weight) / std::sqrt(norms.direction);
    for (size_t i = 0; i < g.size(); ++i) {
      const Real moved = step * directions[i].x, p_next = p[i] - moved;
      params.push_back(
          {p_next, u * std::abs(moved) + step * directions[i].off + u * std::abs(p_next)});
    }
    table.lamb_apply(rule, arrays, step, {0, kCount});
    const std::string what =
        std::string(table.name) + ", LAMB, " + name_of(storage) + ", step " + std::to_string(t);
    expect_within(param.values(), params, what + ", param");
    expect_within(first.values(), firsts, what + ", exp_avg");
    expect_within(second.values(), seconds, what + ", exp_avg_sq");
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(LambFormula, FollowsTheLoop) {
  for (const KernelTable* table : tables_here()) {
    for (const double decay : {0.0, 0.1}) {
      for (const Storage storage : float_storages()) expect_lamb_follows(*table, decay, storage);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LambFormula, NormsAreFiniteWithoutEpsAtAnyLength) {
  // Lanes are filled up with zeros, for which m / sqrt(v) is 0 / 0.
  for (const KernelTable* table : tables_here()) {
    for (const int64_t count : {1, 5, 17}) {
      TestArray grad(Storage::kF32, std::vector<float>(static_cast<size_t>(count), 2.0F));
      TestArray param(Storage::kF32, count), first(Storage::kF32, count);
      TestArray second(Storage::kF32, count);
      const LambNorms norms = table->lamb_moments(
          lamb_rule(0.5, 0.75, 0.0, 0.0, 1),
          {grad.grad(), param.stream(), first.stream(), second.stream()}, {0, count});
      EXPECT_EQ(norms.direction, static_cast<double>(count)) << table->name;  // all of it exact
      EXPECT_EQ(norms.weight, 0.0) << table->name;
    }
  }
}

TEST(LambFormula, NormsAreOfTheMomentsThatAreKept) {
  // In 16 or 8 bits the moments that lamb_apply() reads were rounded; the direction must be theirs.
  for (const KernelTable* table : tables_here()) {
    for (const auto& [first_storage, second_storage] :
         {std::pair{Storage::kBf16Stochastic, Storage::kBf16Stochastic},
          std::pair{Storage::kBlock8Signed, Storage::kBlock8Unsigned}}) {
      TestArray grad(Storage::kF32, random_numbers(60, kCount)), param(Storage::kF32, kCount);
      TestArray first(first_storage, kCount, 0, 1), second(second_storage, kCount, 0, 2);
      const LambRule rule = lamb_rule(0.9, 0.99, 1e-6, 0.0, 1);
      const LambArrays arrays{grad.grad(), param.stream(), first.stream(), second.stream()};
      const LambNorms norms = table->lamb_moments(rule, arrays, {0, kCount});
      table->lamb_apply(rule, arrays, 1.0, {0, kCount});
      double moved = 0.0;  // from 0 by the direction itself
      for (const double p : param.values()) moved += p * p;
      EXPECT_NEAR(norms.direction, moved, moved * static_cast<double>(kCount) * 0x1p-52)
          << table->name << ", " << name_of(first_storage);
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
