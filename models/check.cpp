#include "models/check.h"

namespace torchamp::models::detail {

int64_t size_or(int64_t value, int64_t fallback, const char* model, const char* field) {
  constexpr int64_t kLargest = int64_t{1} << 30;  // products of two sizes stay inside int64_t
  TORCH_CHECK_VALUE(value >= 0 && value <= kLargest, "[", model, "] ", field, " is ", value,
                    "; 1 to ", kLargest, " is accepted, or 0 for the default of ", fallback, ".");
  return value == 0 ? fallback : value;
}

void check_floating(const torch::Tensor& input, const char* model) {
  TORCH_CHECK_TYPE(input.is_floating_point(), "[", model, "] An input of dtype ",
                   input.scalar_type(), " came; a floating point dtype is accepted.");
}

void check_image(const torch::Tensor& input, const char* model, int64_t channels,
                 int64_t smallest) {
  TORCH_CHECK_VALUE(input.dim() == 4 && input.size(1) == channels && input.size(2) >= smallest &&
                        input.size(3) >= smallest,
                    "[", model, "] An input of shape ", input.sizes(), " came; [batch, ", channels,
                    ", height, width] with height and width of at least ", smallest,
                    " is accepted. Was the model made for other data?");
  check_floating(input, model);
}

}  // namespace torchamp::models::detail
