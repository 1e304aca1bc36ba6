// The matrix of update kernels: every rule, storage, length around the lane width and misaligned
// start, inf and NaN at any place: all tables give the bits of the scalar one and stay inside of
// their arrays, and chunks give what the whole gives.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// 1, 4, 8 and 16 are the lanes' widths.
const int64_t kLengths[] = {0,  1,  3,  4,  5,  7,   8,   9,   14,  15,  16,
                            17, 26, 31, 32, 50, 255, 256, 257, 511, 512, 513};

struct Storages {
  Storage param, grad, moment, second_moment;
};

std::string name_of(const Storages& storages) {
  return std::string("param ") + kernels::name_of(storages.param) + ", grad " +
         kernels::name_of(storages.grad) + ", moments " + kernels::name_of(storages.moment);
}

// Every pair of storages that optimizers use, each parameter's own gradient and a wider one.
std::vector<Storages> all_storages() {
  std::vector<Storages> all = {{Storage::kF64, Storage::kF64, Storage::kF64, Storage::kF64}};
  for (const Storage param :
       {Storage::kF32, Storage::kBf16, Storage::kF16, Storage::kBf16Stochastic,
        Storage::kBf16WithRest, Storage::kF16WithCopy}) {
    for (const Storage grad : {Storage::kF32, Storage::kBf16, Storage::kF16}) {
      for (const Storage moment : {Storage::kF32, Storage::kBf16, Storage::kF16,
                                   Storage::kBf16Stochastic, Storage::kBlock8Signed}) {
        const bool is_block = moment == Storage::kBlock8Signed;
        all.push_back({param, grad, moment, is_block ? Storage::kBlock8Unsigned : moment});
      }
    }
  }
  return all;
}

// One gradient, one parameter and its state, the same whatever the table.
struct Tensors {
  Tensors(const Storages& storages, int64_t count, int64_t offset)
      : grad(storages.grad, random_numbers(1, count), offset),
        param(storages.param, random_numbers(2, count), offset, 11),
        moment(storages.moment, random_numbers(3, count), offset + 1, 12),
        second_moment(storages.second_moment, random_squares(4, count), offset, 13),
        largest(storages.second_moment, random_squares(5, count), offset + 2, 14) {}

  std::vector<uint64_t> bits() {
    std::vector<uint64_t> all;
    for (TestArray* array : {&grad, &param, &moment, &second_moment, &largest}) {
      const std::vector<uint64_t> some = array->bits();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  bool guards_hold() const {
    return grad.guards_hold() && param.guards_hold() && moment.guards_hold() &&
           second_moment.guards_hold() && largest.guards_hold();
  }

  TestArray grad, param, moment, second_moment, largest;
};

// An update of `tensors` over `range`, with numbers that the kernel returned.
using Update = std::vector<double> (*)(const KernelTable&, Tensors&, Range);

GradStream scaled(TestArray& grad, bool write_back) { return grad.grad(0.37, 0.81, write_back); }

template <bool kDecoupled, bool kAmsgrad, bool kDecays, bool kWriteBack>
std::vector<double> adam(const KernelTable& table, Tensors& t, Range range) {
  const AdamRule rule =
      adam_rule(1e-2, 0.9, 0.99, 1e-8, kDecays ? 0.1 : 0.0, kDecoupled, kAmsgrad, 3);
  table.adam(rule,
             {scaled(t.grad, kWriteBack),
              t.param.stream(),
              t.moment.stream(),
              t.second_moment.stream(),
              kAmsgrad ? t.largest.stream() : Stream{},
              {}},
             range);
  return {};
}

void halve_floats(int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] *= 0.5F;
}
void halve_doubles(int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] *= 0.5;
}

std::vector<double> adam_with_other_roots(const KernelTable& table, Tensors& t, Range range) {
  const AdamRule rule = adam_rule(1e-2, 0.4, 0.99, 1e-8, 0.1, true, true, 3);
  table.adam(rule,
             {t.grad.grad(),
              t.param.stream(),
              t.moment.stream(),
              t.second_moment.stream(),
              t.largest.stream(),
              {halve_floats, halve_doubles}},
             range);
  return {};
}

std::vector<double> adam_with_estimated_roots(const KernelTable& table, Tensors& t, Range range) {
  const AdamRule rule = adam_rule(1e-2, 0.9, 0.99, 1e-8, 0.1, true, false, 3);
  RootFunctions roots{halve_floats, halve_doubles};
  roots.floats_are_estimated = true;
  table.adam(rule,
             {scaled(t.grad, false),
              t.param.stream(),
              t.moment.stream(),
              t.second_moment.stream(),
              {},
              roots},
             range);
  return {};
}

template <bool kDecays, bool kMomentum, bool kNesterov, bool kFirst>
std::vector<double> sgd(const KernelTable& table, Tensors& t, Range range) {
  SgdRule rule;
  rule.weight_decay = kDecays ? 0.1 : 0.0;
  rule.momentum = kMomentum ? 0.9 : 0.0;
  rule.one_minus_dampening = 0.7;
  rule.minus_lr = -0.01;
  rule.nesterov = kNesterov;
  rule.is_first = kFirst;
  table.sgd(rule,
            {scaled(t.grad, kDecays), t.param.stream(), kMomentum ? t.moment.stream() : Stream{}},
            range);
  return {};
}

std::vector<double> lamb(const KernelTable& table, Tensors& t, Range range) {
  const LambRule rule = lamb_rule(0.9, 0.99, 1e-6, 0.1, 3);
  const LambArrays arrays{scaled(t.grad, true), t.param.stream(), t.moment.stream(),
                          t.second_moment.stream()};
  const LambNorms norms = table.lamb_moments(rule, arrays, range);
  table.lamb_apply(rule, arrays, 0.02, range);
  return {norms.weight, norms.direction};
}

struct NamedUpdate {
  const char* name;
  Update run;
};
const NamedUpdate kUpdates[] = {
    {"adamw", adam<true, false, true, true>},
    {"adamw amsgrad", adam<true, true, true, false>},
    {"adam", adam<false, false, false, true>},
    {"adam with decay, amsgrad", adam<false, true, true, true>},
    {"adam with other roots", adam_with_other_roots},
    {"adamw with estimated roots", adam_with_estimated_roots},
    {"sgd", sgd<false, false, false, false>},
    {"sgd with decay", sgd<true, false, false, false>},
    {"sgd with momentum, first", sgd<true, true, false, true>},
    {"sgd with momentum", sgd<false, true, false, false>},
    {"sgd with nesterov", sgd<true, true, true, false>},
    {"lamb", lamb},
};

bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))) return false;
  }
  return a.size() == b.size();
}

// Runs `update` twice with every table on tensors that `change` changed; all must agree.
template <typename Change>
void expect_all_tables_agree(const NamedUpdate& update, const Storages& storages, int64_t count,
                             int64_t offset, const Change& change) {
  std::vector<uint64_t> first_bits;
  std::vector<double> first_numbers;
  for (const KernelTable* table : tables_here()) {
    Tensors tensors(storages, count, offset);
    change(tensors);
    update.run(*table, tensors, {0, count});
    const std::vector<double> numbers = update.run(*table, tensors, {0, count});
    ASSERT_TRUE(tensors.guards_hold()) << table->name << " wrote outside; " << update.name << ", "
                                       << name_of(storages) << ", " << count << " elements";
    if (table == tables_here().front()) {
      first_bits = tensors.bits();
      first_numbers = numbers;
    }
    ASSERT_TRUE(tensors.bits() == first_bits && same_numbers(numbers, first_numbers))
        << table->name << " differs from scalar; " << update.name << ", " << name_of(storages)
        << ", " << count << " elements, offset " << offset;
  }
}

class UpdateMatrix : public testing::TestWithParam<NamedUpdate> {};

TEST_P(UpdateMatrix, AllTablesGiveTheSameBitsAtAnyLengthAndStart) {
  for (const Storages& storages : all_storages()) {
    for (const int64_t count : kLengths) {
      expect_all_tables_agree(GetParam(), storages, count, count % 4, [](Tensors&) {});
    }
    for (const int64_t offset : {0, 1, 2, 3, 5}) {
      expect_all_tables_agree(GetParam(), storages, 48, offset, [](Tensors&) {});
    }
  }
}

TEST_P(UpdateMatrix, AllTablesAgreeOnInfAndNanAnywhere) {
  for (const Storages& storages : all_storages()) {
    for (const int64_t count : {1, 17, 64, 513}) {
      for (const int64_t index : {int64_t{0}, count / 2, count - 1}) {
        for (const double bad : {kInf, -kInf, std::nan("")}) {
          expect_all_tables_agree(GetParam(), storages, count, 1,
                                  [&](Tensors& t) { t.grad.set(index, bad); });
        }
        expect_all_tables_agree(GetParam(), storages, count, 1, [&](Tensors& t) {
          t.param.set(index, std::nan(""));
          t.largest.set(count - 1 - index, std::nan(""));
        });
      }
    }
  }
}

TEST_P(UpdateMatrix, ABadElementSpoilsItsNeighboursOnlyInABlockOfEightBits) {
  for (const Storages& storages : all_storages()) {
    if (storages.moment == Storage::kBlock8Signed || GetParam().run == lamb) continue;
    for (const KernelTable* table : tables_here()) {
      Tensors good(storages, 50, 1), bad(storages, 50, 1);
      bad.grad.set(20, kInf);
      GetParam().run(*table, good, {0, 50});
      GetParam().run(*table, bad, {0, 50});
      const std::vector<double> a = good.param.values(), b = bad.param.values();
      for (size_t i = 0; i < a.size(); ++i) {
        if (i == 20) {
          ASSERT_FALSE(std::isfinite(b[i])) << table->name << ", " << name_of(storages);
        } else {
          ASSERT_EQ(a[i], b[i]) << table->name << ", " << name_of(storages) << ", element " << i;
        }
      }
    }
  }
}

TEST_P(UpdateMatrix, ChunksInAnyOrderGiveWhatTheWholeGives) {
  for (const Storages& storages : all_storages()) {
    for (const KernelTable* table : tables_here()) {
      Tensors whole(storages, 1300, 1), parts(storages, 1300, 1);
      GetParam().run(*table, whole, {0, 1300});
      for (const Range range :
           {Range{1024, 1300}, Range{0, 256}, Range{768, 1024}, Range{256, 768}}) {
        GetParam().run(*table, parts, range);
      }
      ASSERT_TRUE(whole.bits() == parts.bits())
          << table->name << ", " << GetParam().name << ", " << name_of(storages);
    }
  }
}

TEST_P(UpdateMatrix, AnEmptyRangeTouchesNothing) {
  for (const Storages& storages : all_storages()) {
    for (const KernelTable* table : tables_here()) {
      Tensors tensors(storages, 300, 1);
      const std::vector<uint64_t> before = tensors.bits();
      for (const double number : GetParam().run(*table, tensors, {256, 256})) {
        EXPECT_EQ(number, 0.0);
      }
      ASSERT_TRUE(tensors.bits() == before) << table->name << ", " << name_of(storages);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, UpdateMatrix, testing::ValuesIn(kUpdates), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(WriteBack, LeavesTheProductsInTheGradientOnlyWhenAsked) {
  for (const KernelTable* table : tables_here()) {
    for (const Storage storage : {Storage::kF32, Storage::kBf16, Storage::kF16, Storage::kF64}) {
      for (const int64_t count : {5, 16, 300}) {
        const bool wide = storage == Storage::kF64;
        const Storage state = wide ? Storage::kF64 : Storage::kF32;
        Tensors tensors({state, storage, state, state}, count, 1);
        TestArray expected(storage, random_numbers(1, count));
        const std::vector<uint64_t> before = tensors.grad.bits();
        adam<true, false, true, false>(*table, tensors, {0, count});
        EXPECT_EQ(tensors.grad.bits(), before) << table->name;
        adam<true, false, true, true>(*table, tensors, {0, count});
        table->multiply(expected.grad(0.37, 0.81), {0, count});
        EXPECT_EQ(tensors.grad.bits(), expected.bits()) << table->name << name_of(storage);
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
