#include "cli/inspect_diff.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "cli/pieces.h"
#include "torchamp/base/words.h"

namespace torchamp::cli {
namespace {

using base::StateDict;
using base::Value;
using Json = nlohmann::ordered_json;

// How the elements of two tensors of one shape differ.
struct Distance {
  int64_t num_different = 0;  // two NaNs are equal
  double max_abs = 0;         // |a - b|
  double max_relative = 0;    // |a - b| / max(|a|, |b|)
  bool is_same_bits = true;
};

// `parts`: numbers an element, 2 in complex ones.
Distance distance_of_rows(const at::Tensor& a, const at::Tensor& b, int64_t parts) {
  Distance distance;
  if (a.scalar_type() == b.scalar_type()) {
    if (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) {
      return distance;
    }
  }
  distance.is_same_bits = false;
  const at::Tensor left = as_doubles(a);
  const at::Tensor right = as_doubles(b);
  const double* x = left.const_data_ptr<double>();
  const double* y = right.const_data_ptr<double>();
  const int64_t count = left.numel();
  // 64-bit ints may differ where their doubles do not.
  const bool is_exact =
      a.scalar_type() == b.scalar_type() && a.element_size() == 8 && !a.is_floating_point();
  const auto* bits_a = static_cast<const uint64_t*>(a.const_data_ptr());
  const auto* bits_b = static_cast<const uint64_t*>(b.const_data_ptr());
  int64_t last_different = -1;  // an element
  for (int64_t i = 0; i < count; ++i) {
    const bool is_equal =
        is_exact ? bits_a[i] == bits_b[i] : x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    if (is_equal) continue;
    if (i / parts != last_different) ++distance.num_different;
    last_different = i / parts;
    double apart = std::fabs(x[i] - y[i]);
    if (is_exact) {
      // Of two near ones the smaller of both differences modulo 2^64; others are far apart.
      const uint64_t modular = std::min(bits_a[i] - bits_b[i], bits_b[i] - bits_a[i]);
      if (apart < 0x1p60) apart = static_cast<double>(modular);
    }
    const double larger = std::max(std::fabs(x[i]), std::fabs(y[i]));
    // A NaN or an infinity on one side is infinitely far.
    distance.max_abs = std::isnan(apart) ? INFINITY : std::max(distance.max_abs, apart);
    const double relative = std::isfinite(apart) ? (larger > 0 ? apart / larger : 0) : INFINITY;
    distance.max_relative = std::max(distance.max_relative, relative);
  }
  return distance;
}

// Nothing for tensors that make far more elements of a storage than it has.
std::optional<Distance> distance_of(const at::Tensor& a, const at::Tensor& b) {
  const std::optional<Pieces> pieces = pieces_of({a, b});
  if (!pieces) {
    // The same view of the same memory is equal however many elements it has.
    if (a.strides() != b.strides()) return std::nullopt;
    const std::optional<Distance> reach = distance_of(reach_of(a), reach_of(b));
    return reach && reach->is_same_bits ? reach : std::nullopt;
  }
  std::vector<Distance> distances(pieces->all.size());
  in_threads(static_cast<int64_t>(distances.size()), [&](int64_t i) {
    distances[i] = distance_of_rows(as_row(pieces->all[i][0]), as_row(pieces->all[i][1]),
                                    a.is_complex() ? 2 : 1);
  });
  Distance all;
  for (const Distance& each : distances) {
    all.num_different += each.num_different * pieces->fold;
    all.max_abs = std::max(all.max_abs, each.max_abs);
    all.max_relative = std::max(all.max_relative, each.max_relative);
    all.is_same_bits = all.is_same_bits && each.is_same_bits;
  }
  return all;
}

struct Difference {
  std::string kind;  // only_in_a, only_in_b, type, shape, dtype, values, value
  std::vector<Json> path;
  std::string name;
  std::string text;  // what a person reads
  Json details;
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// The only element of a tensor of real numbers.
std::string element_text(const at::Tensor& tensor) {
  const at::Tensor element = as_row(tensor);
  if (element.scalar_type() == at::kBool) return element.item<bool>() ? "True" : "False";
  const bool is_int = !element.is_floating_point();
  if (element.scalar_type() == at::kUInt64) return std::to_string(element.item().toUInt64());
  if (is_int) {
    return std::to_string(element.to(at::kLong).item<int64_t>());
  }
  return float_text(as_doubles(element).item<double>());
}

std::string brief(const Value& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value.storage())) {
    return base::dtype_name(tensor->scalar_type()) + " " + shape_text(tensor->sizes());
  }
  if (const auto* dict = std::get_if<StateDict>(&value.storage())) {
    return "dict of " + std::to_string(dict->size());
  }
  return value_text(value);
}

const std::vector<Value>* items_of(const Value& value) {
  if (value.is<base::List>() || value.is<base::Tuple>() || value.is<base::Set>()) {
    return &value.to_items();
  }
  return nullptr;
}

class Comparison {
 public:
  explicit Comparison(bool with_values) : with_values_(with_values) {}

  void compare(const Value& a, const Value& b) {
    if (std::string(a.type_name()) != b.type_name()) {
      add("type",
          std::string(a.type_name()) + " " + brief(a) + " -> " + b.type_name() + " " + brief(b),
          {{"a", a.type_name()}, {"b", b.type_name()}});
    } else if (a.is<StateDict>()) {
      compare_dicts(a.to_dict(), b.to_dict());
    } else if (a.is<at::Tensor>()) {
      compare_tensors(a.to_tensor(), b.to_tensor());
    } else if (const auto* items = items_of(a)) {
      compare_items(*items, *items_of(b));
    } else {
      compare_plain(a, b);
    }
  }

  void compare_metadata(const StateDict& a, const StateDict& b) {
    below("__metadata__", [&] { compare_dicts(a, b); });
  }

  const std::vector<Difference>& differences() const { return differences_; }
  size_t num_equal() const { return num_equal_; }

 private:
  void add(const char* kind, std::string text, Json details) {
    std::string name;
    for (const Json& key : path_) {
      name += (name.empty() ? "" : ".") +
              (key.is_string() ? base::printable(key.get<std::string>()) : key.dump());
    }
    differences_.push_back({kind, path_, std::move(name), std::move(text), std::move(details)});
  }

  template <typename Visit>
  void below(Json key, Visit visit) {
    path_.push_back(std::move(key));
    visit();
    path_.pop_back();
  }

  void compare_dicts(const StateDict& a, const StateDict& b) {
    const auto json = [](const StateDict::Key& key) {
      const auto* name = std::get_if<std::string>(&key);
      return name != nullptr ? Json(*name) : Json(std::get<int64_t>(key));
    };
    for (const auto& [key, value] : a.entries()) {
      const Value* other = b.find(key);
      below(json(key), [&, &value = value] {
        if (other == nullptr) {
          add("only_in_a", brief(value), {{"type", value.type_name()}});
        } else {
          compare(value, *other);
        }
      });
    }
    for (const auto& [key, value] : b.entries()) {
      if (a.contains(key)) continue;
      below(json(key), [&, &value = value] {
        add("only_in_b", brief(value), {{"type", value.type_name()}});
      });
    }
  }

  void compare_items(const std::vector<Value>& a, const std::vector<Value>& b) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      below(i, [&] {
        if (i >= b.size()) {
          add("only_in_a", brief(a[i]), {{"type", a[i].type_name()}});
        } else if (i >= a.size()) {
          add("only_in_b", brief(b[i]), {{"type", b[i].type_name()}});
        } else {
          compare(a[i], b[i]);
        }
      });
    }
  }

  void compare_plain(const Value& a, const Value& b) {
    if (is_equal(a, b)) {
      ++num_equal_;
      return;
    }
    add("value", value_text(a) + " -> " + value_text(b),
        {{"a", value_json(a)}, {"b", value_json(b)}});
  }

  // Of one type that holds nothing else.
  static bool is_equal(const Value& a, const Value& b) {
    if (a.is<double>()) {
      const double left = a.to_double();
      const double right = b.to_double();
      return left == right || (std::isnan(left) && std::isnan(right));
    }
    if (a.is<std::string>()) return a.to_string() == b.to_string();
    if (a.is<base::Bytes>()) {
      return std::get<base::Bytes>(a.storage()) == std::get<base::Bytes>(b.storage());
    }
    if (a.is<base::BigInt>() && b.is<base::BigInt>()) {
      return std::get<base::BigInt>(a.storage()) == std::get<base::BigInt>(b.storage());
    }
    return value_text(a) == value_text(b);
  }

  void compare_tensors(const at::Tensor& a, const at::Tensor& b) {
    if (a.sizes() != b.sizes()) {
      add("shape", shape_text(a.sizes()) + " -> " + shape_text(b.sizes()),
          {{"a", a.sizes().vec()}, {"b", b.sizes().vec()}});
      return;
    }
    const bool is_same_dtype = a.scalar_type() == b.scalar_type();
    std::optional<Distance> distance;
    // A complex number has no counterpart among real ones.
    if (with_values_ && a.is_complex() == b.is_complex()) distance = distance_of(a, b);
    if (is_same_dtype && (!with_values_ || (distance && distance->is_same_bits))) {
      ++num_equal_;
      return;
    }
    std::string text;
    Json details = Json::object();
    if (!is_same_dtype) {
      details["a"] = base::dtype_name(a.scalar_type());
      details["b"] = base::dtype_name(b.scalar_type());
      text = base::dtype_name(a.scalar_type()) + " -> " + base::dtype_name(b.scalar_type()) + ", ";
    }
    if (!distance) {
      text += "values not compared";
    } else if (distance->num_different == 0) {
      text += is_same_dtype ? "same values in other bits" : "same values";
    } else if (a.numel() == 1 && !a.is_complex()) {
      text += element_text(a) + " -> " + element_text(b);
    } else {
      text += std::to_string(distance->num_different) + " of " +
              base::counted(a.numel(), "element") +
              (distance->num_different == 1 ? " differs" : " differ") + ", by at most " +
              short_number(distance->max_abs) + " (relative " +
              short_number(distance->max_relative) + ")";
    }
    if (distance) {
      details["different"] = distance->num_different;
      details["elements"] = a.numel();
      details["max_abs"] = number_json(distance->max_abs);
      details["max_relative"] = number_json(distance->max_relative);
    }
    add(is_same_dtype ? "values" : "dtype", std::move(text), std::move(details));
  }

  bool with_values_;
  std::vector<Json> path_;
  std::vector<Difference> differences_;
  size_t num_equal_ = 0;
};

std::string summary(const Comparison& comparison) {
  const size_t num_equal = comparison.num_equal();
  const std::string equal = base::counted(num_equal, "entry is equal", "entries are equal");
  const size_t count = comparison.differences().size();
  return (count == 0 ? "no difference: " : base::counted(count, "difference") + "; ") + equal;
}

}  // namespace

bool print_diff(const CheckpointFile& a, const CheckpointFile& b, const DiffOptions& options) {
  Comparison comparison(options.values);
  if (a.is_safetensors && b.is_safetensors) comparison.compare_metadata(a.metadata, b.metadata);
  comparison.compare(a.root, b.root);
  const std::vector<Difference>& differences = comparison.differences();
  if (options.json) {
    Json rows = Json::array();
    for (const Difference& each : differences) {
      Json row = {{"key", each.path}, {"kind", each.kind}};
      row.update(each.details);
      rows.push_back(std::move(row));
    }
    const Json json = {{"a", a.path.string()},
                       {"b", b.path.string()},
                       {"equal", differences.empty()},
                       {"num_equal", comparison.num_equal()},
                       {"num_different", differences.size()},
                       {"differences", rows}};
    std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return !differences.empty();
  }
  constexpr size_t kShown = 60;
  const size_t shown =
      options.all || differences.size() <= kShown + 2 ? differences.size() : kShown;
  for (size_t i = 0; i < shown; ++i) {
    const Difference& each = differences[i];
    const char* mark = each.kind == "only_in_a" ? "-" : each.kind == "only_in_b" ? "+" : "!";
    std::printf("%s %s: %s\n", mark, each.name.c_str(), each.text.c_str());
  }
  if (shown < differences.size()) {
    std::printf("... %zu more (--all shows them)\n", differences.size() - shown);
  }
  std::printf("%s\n", summary(comparison).c_str());
  return !differences.empty();
}

}  // namespace torchamp::cli
