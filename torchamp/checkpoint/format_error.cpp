#include "torchamp/checkpoint/format_error.h"

#include <new>

#include <c10/util/Exception.h>

#include "torchamp/base/error.h"

namespace torchamp::checkpoint {

void rethrow_after(const std::string& before) {
  try {
    throw;
  } catch (const FormatError& error) {
    throw base::CheckpointError(before + error.what());
  } catch (const c10::Error& error) {  // LibTorch's own text, without the backtrace
    const std::string text = error.what_without_backtrace();
    throw base::CheckpointError(before + text.substr(0, text.find('\n')));
  } catch (const std::bad_alloc&) {
    throw base::CheckpointError(before + "there is not enough memory for it.");
  }
}

}  // namespace torchamp::checkpoint
