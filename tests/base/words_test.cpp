#include "torchamp/base/words.h"

#include <utility>

#include <gtest/gtest.h>

namespace torchamp::base {
namespace {

TEST(Words, AnArticleFitsTheFirstLetter) {
  EXPECT_EQ(with_article("dict"), "a dict");
  EXPECT_EQ(with_article("int"), "an int");
  EXPECT_EQ(with_article("os.system"), "an os.system");
  EXPECT_EQ(with_article("NoneType"), "a NoneType");
  EXPECT_EQ(with_article("None"), "None");
  EXPECT_EQ(with_article("bytes"), "bytes");
  EXPECT_EQ(with_article(""), "a ");
}

TEST(Words, OneIsSingularAndAllElsePlural) {
  EXPECT_EQ(counted(0, "tensor"), "0 tensors");
  EXPECT_EQ(counted(1, "tensor"), "1 tensor");
  EXPECT_EQ(counted(2, "tensor"), "2 tensors");
  EXPECT_EQ(counted(1, "entry", "entries"), "1 entry");
  EXPECT_EQ(counted(UINT64_MAX, "entry", "entries"), "18446744073709551615 entries");
}

TEST(Words, DtypesHavePythonsNames) {
  // Those of [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)] that have data.
  using enum at::ScalarType;
  for (const auto& [dtype, name] : std::initializer_list<std::pair<at::ScalarType, const char*>>{
           {Float, "float32"},
           {Double, "float64"},
           {Half, "float16"},
           {BFloat16, "bfloat16"},
           {Long, "int64"},
           {Int, "int32"},
           {Short, "int16"},
           {Char, "int8"},
           {Byte, "uint8"},
           {UInt16, "uint16"},
           {UInt32, "uint32"},
           {UInt64, "uint64"},
           {Bool, "bool"},
           {ComplexHalf, "complex32"},
           {ComplexFloat, "complex64"},
           {ComplexDouble, "complex128"},
           {Float8_e4m3fn, "float8_e4m3fn"},
           {Float8_e4m3fnuz, "float8_e4m3fnuz"},
           {Float8_e5m2, "float8_e5m2"},
           {Float8_e5m2fnuz, "float8_e5m2fnuz"},
           {Float8_e8m0fnu, "float8_e8m0fnu"},
           {Float4_e2m1fn_x2, "float4_e2m1fn_x2"},
           {QInt8, "qint8"},
           {QUInt4x2, "quint4x2"},
           {Undefined, "undefined"}}) {
    EXPECT_EQ(dtype_name(dtype), name);
  }
}

}  // namespace
}  // namespace torchamp::base
