#include "torchamp/checkpoint/dtype.h"

#include <algorithm>
#include <array>

namespace torchamp::checkpoint {
namespace {

using enum at::ScalarType;

constexpr std::array kDtypes = {
    SavedDtype{Float, "float32", "FloatStorage"},
    SavedDtype{Double, "float64", "DoubleStorage"},
    SavedDtype{Half, "float16", "HalfStorage"},
    SavedDtype{BFloat16, "bfloat16", "BFloat16Storage"},
    SavedDtype{Long, "int64", "LongStorage"},
    SavedDtype{Int, "int32", "IntStorage"},
    SavedDtype{Short, "int16", "ShortStorage"},
    SavedDtype{Char, "int8", "CharStorage"},
    SavedDtype{Byte, "uint8", "ByteStorage"},
    SavedDtype{Bool, "bool", "BoolStorage"},
    SavedDtype{ComplexFloat, "complex64", "ComplexFloatStorage"},
    SavedDtype{ComplexDouble, "complex128", "ComplexDoubleStorage"},
    SavedDtype{ComplexHalf, "complex32", ""},
    SavedDtype{UInt16, "uint16", ""},
    SavedDtype{UInt32, "uint32", ""},
    SavedDtype{UInt64, "uint64", ""},
    SavedDtype{Float8_e5m2, "float8_e5m2", ""},
    SavedDtype{Float8_e4m3fn, "float8_e4m3fn", ""},
    SavedDtype{Float8_e5m2fnuz, "float8_e5m2fnuz", ""},
    SavedDtype{Float8_e4m3fnuz, "float8_e4m3fnuz", ""},
    SavedDtype{Float8_e8m0fnu, "float8_e8m0fnu", ""},
};

template <typename Predicate>
std::optional<SavedDtype> find(Predicate predicate) {
  const auto* it = std::find_if(kDtypes.begin(), kDtypes.end(), predicate);
  return it == kDtypes.end() ? std::nullopt : std::optional<SavedDtype>(*it);
}

}  // namespace

std::optional<SavedDtype> find_dtype(at::ScalarType type) {
  return find([&](const SavedDtype& dtype) { return dtype.type == type; });
}

std::optional<SavedDtype> find_dtype_by_name(std::string_view name) {
  return find([&](const SavedDtype& dtype) { return dtype.name == name; });
}

std::optional<SavedDtype> find_dtype_by_storage(std::string_view storage_class) {
  return find([&](const SavedDtype& dtype) {
    return !storage_class.empty() && dtype.storage_class == storage_class;
  });
}

}  // namespace torchamp::checkpoint
