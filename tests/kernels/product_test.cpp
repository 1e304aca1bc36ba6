// Products of 16-bit matrices in every table: against loops in double, and the same bits as the
// scalar table, wherever the numbers lie.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/arrays.h"

namespace torchamp::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// How a matrix lies in memory.
enum class Order { kRows, kColumns, kNeither, kOneRow, kOneColumn };

// After a start that is not aligned, with gaps between rows or columns.
struct TestMatrix {
  TestMatrix(Storage storage, Order order, int64_t rows, int64_t columns, uint64_t seed)
      : row_stride(strides(order, rows, columns)[0]),
        column_stride(strides(order, rows, columns)[1]),
        array(storage,
              random_numbers(seed, (rows - 1) * row_stride + (columns - 1) * column_stride + 1), 1),
        values(array.values()) {}

  static std::vector<int64_t> strides(Order order, int64_t rows, int64_t columns) {
    switch (order) {
      case Order::kRows:
        return {columns + 3, 1};
      case Order::kColumns:
        return {1, rows + 2};
      case Order::kNeither:
        return {2 * columns + 1, 2};
      case Order::kOneRow:
        return {0, 1};
      default:
        return {1, 0};
    }
  }
  size_t place(int64_t i, int64_t j) const {
    return static_cast<size_t>(i * row_stride + j * column_stride);
  }
  double at(int64_t i, int64_t j) const { return values[place(i, j)]; }
  void set(int64_t i, int64_t j, double value) {
    array.set(static_cast<int64_t>(place(i, j)), value);
    values = array.values();
  }
  Matrix16 matrix() {
    return {static_cast<uint16_t*>(array.stream().data), row_stride, column_stride};
  }

  int64_t row_stride, column_stride;
  TestArray array;
  std::vector<double> values;
};

void multiply(const KernelTable& table, const Product& product, const ProductPart& part) {
  const int64_t count = table.products.scratch(product);
  // Whatever was there before, NaN say, must not matter.
  std::vector<float> scratch(static_cast<size_t>(count + 8),
                             std::numeric_limits<float>::quiet_NaN());
  table.products.multiply(product, part, scratch.data());
  for (int64_t i = count; i < count + 8; ++i) {
    EXPECT_TRUE(std::isnan(scratch[static_cast<size_t>(i)])) << "written behind the scratch";
  }
}
void multiply(const KernelTable& table, const Product& product) {
  multiply(table, product, {0, product.rows, 0, product.columns});
}

// Half a unit in the last place at x.
double half_unit(double x, Storage storage) {
  const int mantissa = storage == Storage::kBf16 ? 7 : 10;
  const int lowest = storage == Storage::kF16 ? -14 : -126;
  return std::ldexp(0.5, std::max(x == 0 ? lowest : std::ilogb(x), lowest) - mantissa);
}

struct Case {
  int64_t rows, inner, columns;
  Order a = Order::kRows, b = Order::kRows, out = Order::kRows;
  float alpha = 1.0F, beta = 0.0F;
  Order self = Order::kRows;
};

Product product_of(Storage storage, const Case& c, TestMatrix& a, TestMatrix& b, TestMatrix& self,
                   TestMatrix& out) {
  Product product;
  product.storage = storage;
  product.rows = c.rows;
  product.inner = c.inner;
  product.columns = c.columns;
  product.a = a.matrix();
  product.b = b.matrix();
  product.out = out.matrix();
  product.alpha = c.alpha;
  product.beta = c.beta;
  if (c.beta != 0.0F) product.self = self.matrix();
  return product;
}

void check(Storage storage, const Case& c) {
  const auto inner = std::max<int64_t>(1, c.inner);
  TestMatrix a(storage, c.a, c.rows, inner, 1), b(storage, c.b, inner, c.columns, 2);
  TestMatrix self(storage, c.self, c.rows, c.columns, 3);
  std::vector<uint64_t> first;
  for (const KernelTable* table : tables_here()) {
    TestMatrix out(storage, c.out, c.rows, c.columns, 4);
    multiply(*table, product_of(storage, c, a, b, self, out));
    EXPECT_TRUE(out.array.guards_hold()) << table->name;
    const std::vector<uint64_t> bits = out.array.bits();
    if (!first.empty()) {
      ASSERT_EQ(bits, first) << table->name << " " << c.rows << "x" << c.inner << "x" << c.columns;
      continue;
    }
    first = bits;
    // What lies between the elements is as it was.
    std::vector<double> got = out.array.values(), expected = out.values;
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.columns; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < c.inner; ++k) {
          sum += a.at(i, k) * b.at(k, j);
          magnitude += std::abs(a.at(i, k) * b.at(k, j));
        }
        sum *= c.alpha;
        magnitude *= std::abs(c.alpha);
        if (c.beta != 0.0F) {
          sum += c.beta * self.at(i, j);
          magnitude += std::abs(c.beta * self.at(i, j));
        }
        // A chain of n sums errs by n units of 2^-24 at most; then one rounding.
        const double of_sum = static_cast<double>(c.inner + 3) * std::ldexp(magnitude, -24);
        const double result = got[out.place(i, j)];
        ASSERT_NEAR(result, sum, half_unit(std::abs(sum) + of_sum, storage) + of_sum)
            << name_of(storage) << " " << c.rows << "x" << c.inner << "x" << c.columns << " orders "
            << static_cast<int>(c.a) << static_cast<int>(c.b) << " at " << i << "," << j;
        expected[out.place(i, j)] = result;
      }
    }
    ASSERT_EQ(got, expected);
  }
}

constexpr Storage kStorages[] = {Storage::kBf16, Storage::kF16};
constexpr Order kInputs[] = {Order::kRows, Order::kColumns, Order::kNeither};

TEST(Product, IsRoundedOnceAndTheSameInEveryTable) {
  for (const Storage storage : kStorages) {
    for (const Order a : kInputs) {
      for (const Order b : kInputs) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 17, 50}) {
          for (const int64_t inner : {0, 1, 15, 16, 17, 33, 64}) {
            for (const int64_t columns : {1, 2, 15, 16, 17, 40, 65, 130}) {
              check(storage, {rows, inner, columns, a, b});
            }
          }
        }
      }
    }
  }
}

TEST(Product, OfLongSumsGoesInNarrowerBlocks) {
  for (const Storage storage : kStorages) {
    for (const Order a : kInputs) {
      for (const Order b : kInputs) {
        check(storage, {3, 3001, 35, a, b});
        check(storage, {20, 1030, 70, a, b});
      }
    }
  }
}

TEST(Product, AddsAFirstTermThatMayBeARowOrAColumn) {
  for (const Storage storage : kStorages) {
    for (const Order self :
         {Order::kRows, Order::kColumns, Order::kNeither, Order::kOneRow, Order::kOneColumn}) {
      for (const Order out : kInputs) {
        for (const int64_t rows : {1, 7, 20}) {
          check(storage, {rows, 33, 37, Order::kRows, Order::kColumns, out, 0.75F, -1.5F, self});
          check(storage, {rows, 0, 37, Order::kRows, Order::kRows, out, 1.0F, 0.5F, self});
        }
      }
    }
  }
}

TEST(Product, TakesRowsAndColumnsThatRepeat) {
  for (const Storage storage : kStorages) {
    for (const Order a : {Order::kOneRow, Order::kOneColumn}) {
      for (const Order b : {Order::kOneRow, Order::kOneColumn}) {
        for (const int64_t rows : {1, 9}) check(storage, {rows, 21, 19, a, b});
      }
    }
  }
}

TEST(Product, WritesItsFirstTerm) {
  for (const Storage storage : kStorages) {
    for (const int64_t columns : {5, 16, 33, 70}) {  // the last sixteen overlap those before
      const Case c{10, 20, columns, Order::kRows, Order::kRows, Order::kRows, 1.0F, 1.0F};
      TestMatrix a(storage, c.a, 10, 20, 1), b(storage, c.b, 20, columns, 2);
      TestMatrix apart(storage, Order::kRows, 10, columns, 3), out = apart, inside = apart;
      for (const KernelTable* table : tables_here()) {
        inside = apart;
        multiply(*table, product_of(storage, c, a, b, apart, out));
        multiply(*table, product_of(storage, c, a, b, inside, inside));
        EXPECT_EQ(inside.array.bits(), out.array.bits()) << table->name << " " << columns;
      }
    }
  }
}

TEST(Product, OfPartsHasTheSameBits) {
  for (const Storage storage : kStorages) {
    for (const Order order : kInputs) {
      for (const int64_t rows : {1, 3, 61}) {
        const Case c{rows, 40, 200, Order::kRows, order};
        TestMatrix a(storage, c.a, rows, 40, 1), b(storage, c.b, 40, 200, 2);
        TestMatrix whole(storage, Order::kRows, rows, 200, 3), parts = whole;
        for (const KernelTable* table : tables_here()) {
          multiply(*table, product_of(storage, c, a, b, whole, whole));
          parts = TestMatrix(storage, Order::kRows, rows, 200, 3);
          const Product product = product_of(storage, c, a, b, parts, parts);
          for (int64_t column = 0; column < 200; column += 70) {
            const int64_t end = std::min<int64_t>(200, column + 70);
            multiply(*table, product, {0, rows / 2, column, end});
            multiply(*table, product, {rows / 2, rows, column, end});
          }
          EXPECT_EQ(parts.array.bits(), whole.array.bits()) << table->name;
        }
      }
    }
  }
}

TEST(Product, CarriesNanAndInfinityToTheirRowsAndColumnsAlone) {
  for (const Storage storage : kStorages) {
    for (const Order order : kInputs) {
      for (const int64_t rows : {1, 3, 18}) {
        for (const double special : {kInf, std::nan("")}) {
          for (const int64_t columns : {5, 37}) {
            const Case c{rows, 35, columns, order, order};
            TestMatrix a(storage, c.a, rows, 35, 1), b(storage, c.b, 35, columns, 2);
            a.set(rows - 1, 34, special);
            b.set(34, columns - 1, 0.0);  // 0 * inf is NaN
            b.set(2, 1, special);
            for (const KernelTable* table : tables_here()) {
              TestMatrix out(storage, Order::kRows, rows, columns, 3);
              multiply(*table, product_of(storage, c, a, b, out, out));
              out.values = out.array.values();
              for (int64_t i = 0; i < rows; ++i) {
                for (int64_t j = 0; j < columns; ++j) {
                  const bool is_special = i == rows - 1 || j == 1;
                  ASSERT_EQ(std::isfinite(out.at(i, j)), !is_special)
                      << table->name << " " << i << "," << j;
                }
              }
              EXPECT_TRUE(std::isnan(out.at(rows - 1, columns - 1))) << table->name;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
