// load_checkpoint(): every part of a checkpoint is compared with the run, then all are taken over.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>

#include "torchamp/base/error.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/words.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/choices.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/state.h"
#include "torchamp/train/finite_check.h"
#include "torchamp/train/machine.h"
#include "torchamp/train/metrics.h"
#include "torchamp/train/rng_state.h"
#include "torchamp/train/run_checkpoint.h"

namespace torchamp::train {
namespace {

// The highest count of applied steps in an optimizer's state; 0 where it has none (SGD, a state
// that is damaged).
int64_t applied_steps_of(const base::StateDict& optimizer) {
  int64_t most = 0;
  base::Differences ignored;
  ignored.attempt([&] {
    for (const auto& entry : optimizer.at("state").to_dict().entries()) {
      const base::Value* step = entry.value.to_dict().find("step");
      if (step == nullptr) return;
      const double count = step->to_double();
      if (count >= 0.0 && count < 0x1p53) most = std::max(most, static_cast<int64_t>(count));
    }
  });
  return most;
}

// One checkpoint on its way into a run: prepare() compares every part and collects the steps that
// apply() then takes.
class Resume {
 public:
  Resume(const base::StateDict& checkpoint, const CheckpointParts& parts)
      : checkpoint_(checkpoint), parts_(parts) {}

  // Errors: CheckpointError with everything that does not fit; nothing has changed then.
  void prepare() {
    prepare_model();
    prepare_run();
    prepare_optimizer();
    prepare_schedule();
    prepare_scaler();
    prepare_ema();
    prepare_choices();
    prepare_generators();
    prepare_checkpoints();
    if (count_ == 0) return;
    throw base::CheckpointError(
        "[resume] The checkpoint does not fit this run (" + std::to_string(count_) +
        (count_ == 1 ? " difference" : " differences") + "), and nothing was changed: " + text_ +
        (text_.ends_with('.') || text_.ends_with('?') ? "" : ".") +
        " Was the model, --optimizer or the data changed, or is the file of another run?");
  }
  void apply() const {
    for (const base::Loading& part : loadings_) part.apply();
  }
  // What a caller should hear after apply().
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void note(const std::string& text) { notes_.push_back(text); }
  void differ(const std::string& part, const base::Differences& differences) {
    if (differences.empty()) return;
    count_ += differences.count();
    text_ += (text_.empty() ? "" : "; ") + part + ": " + differences.text();
  }
  void differ(const std::string& part, const std::string& text) {
    base::Differences differences;
    differences.add(text);
    differ(part, differences);
  }
  void then(const std::string& part, base::Loading loading) {
    differ(part, loading.differences);
    loadings_.push_back(std::move(loading));
  }
  void then(std::function<void()> step) { loadings_.push_back({{}, std::move(step)}); }
  // A part of the checkpoint: a dict, missing (None, too), or neither, which is a difference.
  struct Part {
    const base::StateDict* dict = nullptr;
    bool is_missing = false;
  };
  Part find(const char* key) {
    const base::Value* value = checkpoint_.find(key);
    if (value == nullptr || value->is_none()) return {nullptr, true};
    const auto* dict = std::get_if<base::StateDict>(&value->storage());
    if (dict == nullptr)
      differ(key, "it is " + base::with_article(value->type_name()) + ", not a dict");
    return {dict, false};
  }

  void prepare_model() {
    const Part model = find("model_state_dict");
    if (model.dict != nullptr) {
      base::Loading loading = optim::prepare_full_state_dict(parts_.module, *model.dict);
      loading.differences.add("not finite", bad_tensors(*model.dict, ""));
      then("model_state_dict", std::move(loading));
    } else if (model.is_missing) {
      differ("model_state_dict", "it is missing");
    }
  }

  // Of the weights and buffers that `dict` has under their names behind `prefix`: those that no
  // checkpoint is written with.
  std::vector<std::string> bad_tensors(const base::StateDict& dict, const std::string& prefix) {
    FiniteCheck check;
    const auto add = [&](const auto& item, FiniteCheck::Accepts accepts) {
      const base::Value* value = dict.find(prefix + item.key());
      const auto* saved = value == nullptr ? nullptr : std::get_if<at::Tensor>(&value->storage());
      if (saved == nullptr || !saved->defined() || saved->sizes() != item.value().sizes()) return;
      check.add("'" + prefix + item.key() + "'", *saved, accepts);
    };
    for (const auto& item : parts_.module.named_parameters()) {
      add(item, FiniteCheck::Accepts::kNothing);
    }
    for (const auto& item : parts_.module.named_buffers()) {
      add(item, FiniteCheck::Accepts::kInfinity);
    }
    return check.bad_names();
  }

  // Where the run stood: in full, or what a file of Python's tells of it.
  void prepare_run() {
    RunState& now = parts_.state;
    const base::StateDict* optimizer = nullptr;
    if (const base::Value* value = checkpoint_.find("optimizer_state_dict")) {
      optimizer = std::get_if<base::StateDict>(&value->storage());
    }
    applied_steps_ = optimizer == nullptr ? 0 : applied_steps_of(*optimizer);
    const std::optional<int64_t> epoch = read_epoch();
    const Part train_state = find("train_state");
    if (train_state.is_missing) {
      saved_.order = now.order;
      saved_.precision = now.precision;
      saved_.optimizer = now.optimizer;
      saved_.step = applied_steps_;
      saved_.epoch = epoch.value_or(0);
      note("The checkpoint has no train_state, as one of Python's: the run goes on after epoch " +
           std::to_string(saved_.epoch) + " and step " + std::to_string(saved_.step) +
           ", the optimizer's count.");
    } else if (train_state.dict != nullptr) {
      base::Differences differences;
      saved_ = run_state_from(*train_state.dict, differences);
      differ("train_state", differences);
      if (differences.empty()) compare_run(now);
      if (differences.empty() && epoch && *epoch != saved_.epoch) {
        differ("epoch", "it is " + std::to_string(*epoch) + ", that of train_state is " +
                            std::to_string(saved_.epoch) + "; the same is expected");
      }
    }
    then([this, &now] {
      saved_.order = now.order;
      saved_.precision = now.precision;
      now = saved_;
    });
  }

  // The epochs that are done; nothing where the checkpoint does not say, or with a difference.
  std::optional<int64_t> read_epoch() {
    const base::Value* saved = checkpoint_.find("epoch");
    if (saved == nullptr || saved->is_none()) return std::nullopt;
    int64_t epoch = 0;
    base::Differences differences;
    differences.attempt([&] {
      epoch = saved->to_int("it");
      if (epoch < 0) {
        throw base::CheckpointError("it is " + std::to_string(epoch) + ", 0 or more is expected");
      }
    });
    differ("epoch", differences);
    return differences.empty() ? std::optional(epoch) : std::nullopt;
  }

  void compare_run(const RunState& now) {
    if (saved_.order != now.order) {
      const std::string text =
          "the data were " + to_string(saved_.order) + " and are " + to_string(now.order);
      if (saved_.is_within_epoch()) {
        differ("train_state", "In the middle of epoch " + std::to_string(saved_.epoch + 1) + " " +
                                  text + "; the same are accepted until the epoch ends");
      } else {
        note("Resumed with other data: " + text + ".");
      }
    }
    const int64_t batch = std::max<int64_t>(1, now.order.batch);
    if (saved_.order == now.order && saved_.next_batch > (now.order.size + batch - 1) / batch) {
      differ("train_state", "next_batch is " + std::to_string(saved_.next_batch) + " of " +
                                std::to_string((now.order.size + batch - 1) / batch) + " batches");
    }
    if (saved_.precision != now.precision) {
      note("Resumed in " + now.precision + "; the checkpoint was written in " + saved_.precision +
           ".");
    }
  }

  void prepare_optimizer() {
    const Part optimizer = find("optimizer_state_dict");
    if (optimizer.is_missing) {
      differ("optimizer_state_dict", "it is missing");
      return;
    }
    const std::string& now = parts_.state.optimizer;
    if (!saved_.optimizer.empty() && saved_.optimizer != now) {
      differ("optimizer_state_dict",
             "it holds the state of " + saved_.optimizer + ", but this run uses " + now);
      return;
    }
    if (optimizer.dict == nullptr) return;
    note_missing_moments(*optimizer.dict);
    base::Loading loading = optim::prepare_optimizer_state_dict(parts_.optimizer, *optimizer.dict);
    if (loading.differences.empty()) add_bad_moments(*optimizer.dict, loading.differences);
    then("optimizer_state_dict", std::move(loading));
  }

  // Infinite second moments are left by huge gradients, and stop their weights; all else that is
  // not finite makes the weights so at the next step. `optimizer` fits.
  static void add_bad_moments(const base::StateDict& optimizer, base::Differences& differences) {
    FiniteCheck first;
    FiniteCheck second;
    for (const auto& [key, state] : optimizer.at("state").to_dict().entries()) {
      for (const auto& entry : state.to_dict().entries()) {
        const auto* tensor = std::get_if<at::Tensor>(&entry.value.storage());
        if (tensor == nullptr || !tensor->defined()) continue;
        const std::string kind = base::to_string(entry.key);
        const std::string name = "state[" + base::to_string(key) + "][" + kind + "]";
        if (kind == "'exp_avg'" || kind == "'momentum_buffer'") first.add(name, *tensor);
        if (kind == "'exp_avg_sq'" || kind == "'max_exp_avg_sq'") {
          second.add(name, *tensor, FiniteCheck::Accepts::kInfinityFromZero);
        }
      }
    }
    differences.add("not finite", first.bad_names());
    differences.add("NaN or below 0", second.bad_names());
  }

  // Legal, as for weights that no step has reached; but not what a run leaves behind. SGD keeps
  // nothing where it has no momentum.
  void note_missing_moments(const base::StateDict& optimizer) {
    if (saved_.step == 0 || parts_.state.optimizer == "SGD") return;
    size_t num_parameters = 0;
    for (const auto& group : parts_.optimizer.param_groups()) {
      num_parameters += group.params().size();
    }
    size_t num_states = 0;
    const base::Value* state = optimizer.find("state");
    if (state == nullptr || !state->is<base::StateDict>()) return;
    for (const auto& entry : state->to_dict().entries()) {
      const auto* of_one = std::get_if<base::StateDict>(&entry.value.storage());
      num_states += of_one != nullptr && !of_one->empty();
    }
    if (num_states >= num_parameters) return;
    note("The checkpoint's optimizer has no state for " +
         std::to_string(num_parameters - num_states) + " of " + std::to_string(num_parameters) +
         " parameters: it starts anew there.");
  }

  // After the optimizer, whose state brings another rate along.
  void prepare_schedule() {
    const Part schedule = find("lr_scheduler_state_dict");
    if (schedule.dict != nullptr) {
      then("lr_scheduler_state_dict", parts_.schedule.prepare_load(*schedule.dict));
    } else if (schedule.is_missing) {
      note("The checkpoint has no lr_scheduler_state_dict: the learning rate is that of step " +
           std::to_string(applied_steps_) + ", the optimizer's count.");
      then([this] { parts_.schedule.set_last_step(applied_steps_); });
    }
  }

  void prepare_scaler() {
    const Part scaler = find("scaler_state_dict");
    const bool is_there = scaler.dict != nullptr && !scaler.dict->empty();
    if (!parts_.scaler.is_enabled()) {
      if (is_there) {
        note("The checkpoint's scaler state (" + scale_text(*scaler.dict) +
             ") is not used: this run does not scale its loss.");
      }
      prepare_history(false);
      return;
    }
    if (is_there) {
      then("scaler_state_dict", parts_.scaler.prepare_load(*scaler.dict));
    } else if (scaler.is_missing || scaler.dict != nullptr) {
      note(
          "The checkpoint has no scaler state, as one written without loss scaling: the scaler "
          "starts anew at scale " +
          shortest(parts_.scaler.get_scale()) + ".");
    }
    prepare_history(is_there);
  }

  void prepare_history(bool is_expected) {
    const Part history = find("scaler_history");
    if (history.dict != nullptr) {
      then("scaler_history", parts_.scaler.prepare_history_load(*history.dict));
    } else if (history.is_missing && is_expected) {
      note("The checkpoint has no scaler_history: the list of skipped steps starts anew.");
    }
  }

  static std::string scale_text(const base::StateDict& scaler) {
    std::string text = "of an unknown scale";
    base::Differences ignored;
    ignored.attempt([&] { text = "scale " + shortest(scaler.at("scale").to_double()); });
    return text;
  }

  void prepare_ema() {
    const Part ema = find("ema_state_dict");
    if (parts_.ema == nullptr) {
      if (ema.dict != nullptr) {
        note(
            "The checkpoint's averaged weights (ema_state_dict) are not used and will not be "
            "written again: this run averages none; --ema goes on with them.");
      }
      return;
    }
    if (ema.dict != nullptr) {
      base::Loading loading = parts_.ema->prepare_load(*ema.dict);
      loading.differences.add("not finite", bad_tensors(*ema.dict, "module."));
      then("ema_state_dict", std::move(loading));
    } else if (ema.is_missing) {
      note(
          "The checkpoint has no averaged weights (ema_state_dict): the average starts anew from "
          "its weights.");
      then([this] { parts_.ema->reset(); });
    }
  }

  // The kernels that the run had go on, so that it computes the same bits; on another CPU it does
  // not anyway, and what is fast is another question there. Files of Python's have none.
  void prepare_choices() {
    const base::StateDict* choices = find("ops_choices").dict;
    if (choices == nullptr || !parts_.config.ops_choices) return;
    base::Differences differences;
    differences.attempt([&] {
      const std::string& cpu = choices->at("cpu").to_string("cpu");
      if (cpu == cpu_name()) {
        ops::detail::choices_of(*choices);
        then([choices] { ops::load_choices_state_dict(*choices); });
      } else if (!choices->at("choices").to_items("choices").empty()) {
        note("The checkpoint's kernels were chosen on another CPU (" + base::printable(cpu) +
             "); they are chosen anew.");
      }
    });
    differ("ops_choices", differences);
  }

  void prepare_generators() {
    const Part generators = find("rng_state");
    if (generators.dict != nullptr) {
      then("rng_state", prepare_rng_state_dict(*generators.dict));
    } else if (generators.is_missing) {
      note("The checkpoint has no rng_state: random numbers go on as this process draws them.");
    }
  }

  // So that the run's older files stay its own, and the best one the best.
  void prepare_checkpoints() {
    const Part kept = find("checkpoint_manager");
    if (kept.dict == nullptr || parts_.checkpoints == nullptr) return;
    then("checkpoint_manager", parts_.checkpoints->prepare_load(*kept.dict));
  }

  const base::StateDict& checkpoint_;
  const CheckpointParts& parts_;
  RunState saved_;
  int64_t applied_steps_ = 0;
  std::vector<base::Loading> loadings_;
  size_t count_ = 0;
  std::string text_;
  std::vector<std::string> notes_;
};

}  // namespace

void load_checkpoint(const base::StateDict& checkpoint, const CheckpointParts& parts,
                     const std::function<void(const std::string&)>& say) {
  Resume resume(checkpoint, parts);
  resume.prepare();
  resume.apply();
  for (const std::string& note : resume.notes()) say(note);
}

}  // namespace torchamp::train
