#include "torchamp/train/metrics.h"

#include <charconv>
#include <cmath>

namespace torchamp::train {
namespace {

std::string json_number(double value) { return std::isfinite(value) ? shortest(value) : "null"; }

void add(std::string& json, const char* key, const std::string& value) {
  json += json.empty() ? "{\"" : ", \"";
  json += key;
  json += "\": ";
  json += value;
}

}  // namespace

std::string shortest(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];  // 17 digits, sign, point, exponent of 3 digits
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

std::string csv_header() { return "epoch,step,loss,lr,scale,grad_norm,skipped,examples_per_s"; }

std::string to_csv(const StepMetrics& metrics) {
  std::string row = std::to_string(metrics.epoch) + "," + std::to_string(metrics.step);
  for (const double value : {metrics.loss, metrics.lr, metrics.scale, metrics.grad_norm}) {
    row += "," + shortest(value);
  }
  return row + (metrics.skipped ? ",1," : ",0,") + shortest(metrics.examples_per_s);
}

std::string to_json(const EpochMetrics& metrics) {
  std::string json;
  add(json, "epoch", std::to_string(metrics.epoch));
  add(json, "train_loss", json_number(metrics.train_loss));
  add(json, "val_loss", json_number(metrics.val_loss));
  add(json, "val_accuracy", json_number(metrics.val_accuracy));
  add(json, "examples_per_s", json_number(metrics.examples_per_s));
  add(json, "scale", json_number(metrics.scale));
  add(json, "skipped_steps", std::to_string(metrics.skipped_steps));
  add(json, "lr", json_number(metrics.lr));
  add(json, "grad_norm", json_number(metrics.grad_norm));
  add(json, "step", std::to_string(metrics.step));
  if (metrics.is_text) add(json, "val_perplexity", json_number(std::exp(metrics.val_loss)));
  return json + "}";
}

}  // namespace torchamp::train
