#include "torchamp/train/progress.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstring>

#include "torchamp/base/error.h"
#include "torchamp/base/one_line.h"

namespace torchamp::train {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kBarInterval = milliseconds(100);  // faster than the eye follows costs time

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char buffer[512];  // every line here is far shorter
  va_list arguments;
  va_start(arguments, pattern);
  const int length = std::vsnprintf(buffer, sizeof(buffer), pattern, arguments);
  va_end(arguments);
  return std::string(buffer, std::min<size_t>(std::max(length, 0), sizeof(buffer) - 1));
}

std::string epoch_of(int64_t epoch, int64_t num_epochs) {
  return num_epochs > 0 ? format("epoch %ld/%ld", epoch, num_epochs) : format("epoch %ld", epoch);
}

std::string numbers(const StepMetrics& metrics) {
  std::string text = format("loss %.4f  %.0f examples/s  lr %.3g  |grad| %.3g", metrics.mean_loss,
                            metrics.examples_per_s, metrics.lr, metrics.grad_norm);
  if (metrics.scale != 1.0 || metrics.epoch_skipped > 0) {
    text += format("  scale %g  skipped %ld", metrics.scale, metrics.epoch_skipped);
  }
  return text;
}

}  // namespace

Progress::Progress(std::FILE* out, ProgressOptions options) : out_(out), options_(options) {}

void Progress::on_step(const StepMetrics& metrics) {
  if (options_.is_terminal) {
    bar(metrics);
    return;
  }
  const int64_t every = options_.steps_a_line > 0
                            ? options_.steps_a_line
                            : std::max<int64_t>(1, (metrics.steps_per_epoch + 9) / 10);
  if (metrics.step_in_epoch % every == 0) {
    line(epoch_of(metrics.epoch, metrics.num_epochs) +
         format("  step %ld/%ld  ", metrics.step_in_epoch, metrics.steps_per_epoch) +
         numbers(metrics));
  }
}

void Progress::on_epoch(const EpochMetrics& metrics) {
  std::string text = epoch_of(metrics.epoch, metrics.num_epochs);
  if (!metrics.is_complete) text += format(", ended at step %ld", metrics.step);
  text += format(": train loss %.4f", metrics.train_loss);
  if (!std::isnan(metrics.val_loss)) text += format(", validation loss %.4f", metrics.val_loss);
  if (metrics.is_text && !std::isnan(metrics.val_loss)) {
    text += format(", perplexity %.2f", std::exp(metrics.val_loss));
  }
  if (!std::isnan(metrics.val_accuracy)) {
    text += format(", accuracy %.2f%%", 100.0 * metrics.val_accuracy);
  }
  text += format(", %.0f examples/s", metrics.examples_per_s);
  if (metrics.scale != 1.0 || metrics.skipped_steps > 0) {
    text += format(", scale %g, %ld skipped", metrics.scale, metrics.skipped_steps);
  }
  line(text);
}

void Progress::on_message(const std::string& text) {
  line(base::one_line(text));  // it may quote what stands in a file
}

void Progress::clear() {
  if (!has_bar_) return;
  has_bar_ = false;
  put("\r\x1b[K");
}

void Progress::line(const std::string& text) {
  clear();
  put(text + "\n");
}

void Progress::bar(const StepMetrics& metrics) {
  const auto now = steady_clock::now();
  const bool is_last = metrics.step_in_epoch == metrics.steps_per_epoch;
  if (has_bar_ && now - last_bar_ < kBarInterval && !is_last) return;
  last_bar_ = now;
  has_bar_ = true;
  constexpr int kCells = 20;
  const int filled = static_cast<int>(metrics.step_in_epoch * kCells /
                                      std::max<int64_t>(1, metrics.steps_per_epoch));
  std::string text = epoch_of(metrics.epoch, metrics.num_epochs) + " [" + std::string(filled, '#') +
                     std::string(kCells - filled, '.') +
                     format("] %ld/%ld  ", metrics.step_in_epoch, metrics.steps_per_epoch) +
                     numbers(metrics);
  // A line longer than the terminal would wrap, and could not be taken back.
  const size_t columns = static_cast<size_t>(std::max(20, options_.width - 1));
  if (text.size() > columns) text.resize(columns);
  put("\r" + text + "\x1b[K");
}

void Progress::put(const std::string& text) {
  errno = 0;
  const size_t written = std::fwrite(text.data(), 1, text.size(), out_);
  if (written == text.size() && std::fflush(out_) == 0) return;
  has_bar_ = false;
  const std::string reason = std::strerror(errno);
  throw base::Error("[train] The progress could not be written: " + reason +
                    (errno == EPIPE ? "; the program that read the output has ended." : "."));
}

}  // namespace torchamp::train
