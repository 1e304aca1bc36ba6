// torchamp train as a process: exit codes, messages, files, signals.

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "cli/command.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"

namespace torchamp::cli::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A run of a second: 64 examples of 1024 numbers, 8 steps an epoch.
const std::string kSmall =
    "train --model mlp --hidden 16 --data synthetic --batch 8 --threads 1 --examples ";

// The CSV without its last column, which is a time.
std::string without_times(const std::string& csv) {
  std::string text;
  for (const std::string& line : lines(csv)) text += line.substr(0, line.rfind(',')) + "\n";
  return text;
}

bool holds_same_numbers(const base::Value& a, const base::Value& b) {
  if (a.is<base::StateDict>() && b.is<base::StateDict>()) {
    const auto& left = a.to_dict().entries();
    const auto& right = b.to_dict().entries();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i].key != right[i].key || !holds_same_numbers(left[i].value, right[i].value)) {
        return false;
      }
    }
    return true;
  }
  if (a.is<at::Tensor>() && b.is<at::Tensor>()) return torch::equal(a.to_tensor(), b.to_tensor());
  return a.storage().index() == b.storage().index();
}

bool is_same_run(const std::filesystem::path& a, const std::filesystem::path& b) {
  const base::StateDict left = checkpoint::load(a);
  const base::StateDict right = checkpoint::load(b);
  for (const char* key : {"model_state_dict", "optimizer_state_dict", "rng_state"}) {
    if (!holds_same_numbers(left.at(key), right.at(key))) return false;
  }
  return left.at("loss").to_double() == right.at("loss").to_double() &&
         left.at("epoch").to_int() == right.at("epoch").to_int();
}

TEST(TrainCommand, BadInputIsOneSentenceAndAnExitCode) {
  struct Case {
    std::string arguments;
    int exit_code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {"--model lenet", 2, "'lenet' is not known; accepted are: mlp, cnn, resnet18, gpt."},
      {"--precision fp8", 2, "'fp8' is not known; accepted are: fp32, bf16, fp16, auto."},
      {"--ops some", 2, "[--ops] 'some' is not known; accepted are: on, off."},
      {"--allocator some", 2, "[--allocator] 'some' is not known; accepted are: on, off."},
      {"--validate-precision x", 2, "[--validate-precision]"},
      {"--optimizer lion", 2, "accepted are: adamw, sgd."},
      {"--device tpu", 2, "cpu, cuda or cuda:N is accepted"},
      {"--data imagenet", 2, "[--data] 'imagenet' is not known"},
      {"--schedule step", 2, "constant, cosine"},
      {"--layout nchw", 2, "contiguous, channels_last"},
      {"--batch 0", 2, "batch is 0"},
      {"--batch -4", 2, "batch is -4"},
      {"--batch many", 2, "many"},
      {"--batch 99999999999999999999", 2, "from 1 to 2147483647 is accepted"},
      {"--epochs 0", 2, "epochs is 0"},
      {"--steps 0", 2, "steps is 0"},
      {"--limit -1", 2, "[--limit] -1"},
      {"--threads 0", 2, "[--threads] 0"},
      {"--accumulate 0", 2, "accumulate is 0"},
      {"--master-weights", 2, "master-weights is on and precision fp32; precision bf16 or fp16 is"},
      {"--master-weights --precision bf16 --validate-precision fp32", 2,
       "validate-precision is fp32; with master-weights the precision of training, bf16"},
      {"--warmup-steps -1", 2, "warmup-steps is -1"},
      {"--lr -1", 2, "lr is -1"},
      {"--lr nan", 2, "lr is nan"},
      {"--clip 0", 2, "clip is 0"},
      {"--ema 1", 2, "ema is 1; a number from 0 (no average) to below 1 is accepted"},
      {"--seed -1", 2, "[--seed] -1"},
      {"--hidden 0 --model mlp --data synthetic", 2, "[--hidden] 0"},
      {"--heads 3 --model gpt --data synthetic", 2, "heads"},
      {"--warmup-steps 1000 --data synthetic --examples 8", 2, "total_steps is 1"},
      {"--resume", 2, "--checkpoint FILE"},
      {"--keep-last 0", 2, "keep-last is 0"},
      {"--checkpoint-every-steps -1", 2, "checkpoint-every-steps is -1"},
      {"--resume --checkpoint none.pt", 2, "'none.pt' does not exist"},
      {"--checkpoint .", 2, "is a folder"},
      {"--checkpoint /proc/none/last.pt", 2, "No file can be written in '/proc/none'"},
      {"--csv /proc/none.csv --data synthetic --examples 8", 2, "cannot be opened for writing"},
      {"--momentun 0.9", 2, "--momentun"},
      {"extra", 2, "extra"},
      {"--data mnist --data-path nowhere", 1, "nowhere"},
      {"--data synthetic --resume --checkpoint corrupt.pt", 1, "corrupt.pt"},
      {"--json /dev/full --data synthetic --examples 8", 1, "No space left on device"},
  };
  Folder folder;
  std::ofstream(folder / "corrupt.pt") << "PK\x03\x04 no checkpoint";
  for (const Case& each : cases) {
    const Result result = folder.run(words("train " + each.arguments));
    EXPECT_EQ(result.exit_code, each.exit_code) << each.arguments << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(each.text)) << each.arguments;
    EXPECT_EQ(lines(result.err).size(), 1U) << each.arguments << "\n" << result.err;
    EXPECT_THAT(result.err, ::testing::StartsWith("torchamp: ")) << each.arguments;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == "corrupt.pt" || name == "stdout.txt" || name == "stderr.txt") << name;
  }
}

TEST(TrainCommand, WritesARowAStepAndAnObjectAnEpoch) {
  Folder folder;
  const Result result =
      folder.run(words(kSmall + "64 --epochs 2 --precision fp16 --csv a.csv --json a.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> rows = lines(read_file(folder / "a.csv"));
  ASSERT_EQ(rows.size(), 17U);
  EXPECT_EQ(rows[0], "epoch,step,loss,lr,scale,grad_norm,skipped,examples_per_s");
  EXPECT_THAT(rows[16], ::testing::StartsWith("2,16,"));
  const std::vector<std::string> epochs = lines(read_file(folder / "a.json"));
  ASSERT_EQ(epochs.size(), 2U);
  const auto last = nlohmann::json::parse(epochs[1]);
  for (const char* key : {"epoch", "train_loss", "val_loss", "val_accuracy", "examples_per_s",
                          "scale", "skipped_steps", "lr", "grad_norm"}) {
    EXPECT_TRUE(last.at(key).is_number()) << key;
  }
  EXPECT_EQ(last.at("epoch"), 2);
  EXPECT_GT(last.at("scale"), 1.0);
}

TEST(TrainCommand, EpochsTwiceOneEqualOneRunOfTwo) {
  Folder folder;
  const std::string run = kSmall + "64 --precision bf16 --ops-choices off --csv ";
  ASSERT_EQ(folder.run(words(run + "a.csv --json a.json --epochs 2 --checkpoint a.pt")).exit_code,
            0);
  ASSERT_EQ(folder.run(words(run + "b.csv --json b.json --epochs 1 --checkpoint b.pt")).exit_code,
            0);
  // What is not given again comes from the checkpoint.
  const Result result =
      folder.run(words("train --resume --checkpoint b.pt --epochs 2 --csv b.csv --json b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Resumed from 'b.pt' after epoch 1 and step 8.\n"));
  EXPECT_EQ(without_times(read_file(folder / "a.csv")), without_times(read_file(folder / "b.csv")));
  EXPECT_TRUE(is_same_run(folder / "a.pt", folder / "b.pt"));
  EXPECT_EQ(lines(read_file(folder / "b.json")).size(), 2U);
}

TEST(TrainCommand, MasterWeightsStandInTheCheckpointAndChangeNoNumber) {
  Folder folder;
  const std::string run =
      kSmall + "64 --precision bf16 --ops-choices off --accumulate 2 --clip 1 --csv ";
  ASSERT_EQ(folder.run(words(run + "a.csv --epochs 2 --checkpoint a.pt")).exit_code, 0);
  ASSERT_EQ(
      folder.run(words(run + "b.csv --epochs 1 --master-weights --checkpoint b.pt")).exit_code, 0);
  EXPECT_TRUE(
      checkpoint::load(folder / "b.pt").at("config").to_dict().at("master-weights").to_bool());
  const Result shown = folder.run(words("train --resume --checkpoint b.pt --print-config"));
  EXPECT_THAT(shown.out, HasSubstr("master-weights = true\n"));
  const Result result =
      folder.run(words("train --resume --checkpoint b.pt --epochs 2 --csv b.csv"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(without_times(read_file(folder / "a.csv")), without_times(read_file(folder / "b.csv")));
  EXPECT_TRUE(is_same_run(folder / "a.pt", folder / "b.pt"));
  // And back.
  EXPECT_EQ(folder
                .run(words("train --resume --checkpoint b.pt --epochs 3 --no-master-weights "
                           "--precision fp32"))
                .exit_code,
            0);
}

class TrainCommandSignal : public ::testing::TestWithParam<int> {};

TEST_P(TrainCommandSignal, EndsInGoodOrderAndResumesExactly) {
  const int signal = GetParam();
  Folder folder;
  // 800 steps, 100 an epoch: time enough for the signal to come in the middle.
  const std::string run = kSmall +
                          "800 --epochs 8 --precision bf16 --ops-choices off --optimizer sgd "
                          "--warmup-steps 10 --log-every 1000 ";
  ASSERT_EQ(folder.run(words(run + "--csv a.csv --checkpoint a.pt")).exit_code, 0);
  const pid_t child = folder.start(words(run + "--csv b.csv --checkpoint b.pt"));
  ASSERT_TRUE(wait_for([&] { return lines(read_file(folder / "b.csv")).size() > 30; }));
  kill(child, signal);
  const Result stopped = folder.finish(child);
  EXPECT_EQ(stopped.exit_code, 128 + signal) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("the checkpoint is 'b.pt', --resume goes on from it."));
  EXPECT_LT(lines(read_file(folder / "b.csv")).size(), 801U);
  const Result resumed = folder.run(words(run + "--csv b.csv --checkpoint b.pt --resume"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(without_times(read_file(folder / "a.csv")), without_times(read_file(folder / "b.csv")));
  EXPECT_TRUE(is_same_run(folder / "a.pt", folder / "b.pt"));
}

INSTANTIATE_TEST_SUITE_P(Stops, TrainCommandSignal, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) {
                           return std::string(info.param == SIGINT ? "SIGINT" : "SIGTERM");
                         });

TEST(TrainCommand, KeepsTheLastAndTheBestAndGoesOnFromTheNewestWholeOne) {
  Folder folder;
  const std::string run = kSmall + "64 --checkpoint run/last.pt ";
  Result result = folder.run(words(run + "--epochs 3 --keep-last 3 --keep-best"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto files = checkpoint::checkpoint_files(folder / "run/last.pt");
  ASSERT_EQ(files.size(), 5U);  // last, three steps, best
  const auto step_of = [](const std::filesystem::path& file) {
    return checkpoint::load(file).at("train_state").to_dict().at("step").to_int();
  };
  EXPECT_EQ(step_of(files[0]), step_of(files[1]));
  const int64_t one_epoch = step_of(files[3]);
  EXPECT_EQ(step_of(files[2]), 2 * one_epoch);

  // The run of three epochs again, from the end of the second, since last.pt is damaged.
  std::filesystem::rename(folder / "run/last.pt", folder / "uninterrupted.pt");
  std::filesystem::remove(files[1]);
  write_file(folder / "run/last.pt", "PK\x03\x04 half");
  result = folder.run(words(run + "--resume"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("Resumed from '" + files[2].lexically_relative(folder.path()).string() +
                        "', the newest whole checkpoint of the run that wrote one last, "));
  EXPECT_THAT(result.out,
              HasSubstr("as 'run/last.pt' does not tell its run, after epoch 2 and "
                        "step " +
                        std::to_string(2 * one_epoch) + ": 'run/last.pt' cannot be read: "));
  EXPECT_TRUE(is_same_run(folder / "run/last.pt", folder / "uninterrupted.pt"));
  EXPECT_EQ(checkpoint::checkpoint_files(folder / "run/last.pt").size(), 5U);  // kept as before

  for (const std::filesystem::path& file : checkpoint::checkpoint_files(folder / "run/last.pt")) {
    write_file(file, "nothing");
  }
  result = folder.run(words(run + "--resume"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("No checkpoint of 'run/last.pt' is good"));
  EXPECT_EQ(lines(result.err).size(), 1U);
}

TEST(TrainCommand, ANewRunSaysWhatBecomesOfAnEarlierOnesFiles) {
  Folder folder;
  const std::string run = kSmall + "64 --checkpoint run/last.pt --epochs 2 ";
  ASSERT_EQ(folder.run(words(run + "--keep-last 2")).exit_code, 0);
  const auto out_of_new_run = [&] { return folder.run(words(run)).out; };
  const std::string stay = " beside it";
  const std::string names = ", but for names that this run writes too";
  EXPECT_THAT(out_of_new_run(),
              HasSubstr("'run/last.pt' holds an earlier run, which this one's first checkpoint "
                        "replaces; --resume goes on from it. Its other checkpoints stay" +
                        stay + names + ".\n"));
  std::filesystem::remove(folder / "run/last.pt");
  EXPECT_THAT(out_of_new_run(),
              HasSubstr("'run/last.pt' is not there, but 2 checkpoints of an earlier run are" +
                        stay + " and stay" + names + "; --resume goes on from the newest.\n"));
}

TEST(TrainCommand, SignalWithoutCheckpointSaysThatNothingWasWritten) {
  Folder folder;
  const pid_t child =
      folder.start(words(kSmall + "64 --epochs 1000000 --csv a.csv --log-every 1000"));
  ASSERT_TRUE(wait_for([&] { return lines(read_file(folder / "a.csv")).size() > 5; }));
  kill(child, SIGTERM);
  const Result result = folder.finish(child);
  EXPECT_EQ(result.exit_code, 143);
  ASSERT_FALSE(result.err.empty());
  EXPECT_THAT(lines(result.err).back(),
              HasSubstr("nothing was written, since --checkpoint was not given."));
}

TEST(TrainCommand, CheckpointOfAnotherModelIsRefusedAndKept) {
  Folder folder;
  ASSERT_EQ(folder.run(words(kSmall + "64 --checkpoint a.pt")).exit_code, 0);
  const std::string before = read_file(folder / "a.pt");
  for (const std::string& other :
       {std::string("--model cnn"), std::string("--hidden 17"), std::string("--optimizer sgd")}) {
    const Result result = folder.run(words("train --resume --checkpoint a.pt --epochs 2 " + other));
    EXPECT_EQ(result.exit_code, 1) << other;
    EXPECT_EQ(lines(result.err).size(), 1U) << result.err;
    EXPECT_EQ(read_file(folder / "a.pt"), before);
  }
}

TEST(TrainCommand, WhatTheRunIsBuiltFromIsToldTogetherWhereItIsDamaged) {
  Folder folder;
  ASSERT_EQ(folder.run(words(kSmall + "64 --checkpoint a.pt")).exit_code, 0);
  const base::StateDict whole = checkpoint::load(folder / "a.pt");
  base::StateDict config = whole.at("config").to_dict();
  config.set("batch", "many");
  config.set("lr", "high");
  base::StateDict tokenizer;
  tokenizer.set("kind", "words");
  base::StateDict damaged = whole;
  damaged.set("config", config);
  damaged.set("data_state", tokenizer);
  damaged.set("train_state", "text");
  checkpoint::save(folder / "a.pt", damaged);
  const std::string before = read_file(folder / "a.pt");
  Result result = folder.run(words("train --resume --checkpoint a.pt --epochs 2"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.err).size(), 1U) << result.err;
  for (const char* text :
       {"cannot be built again, and nothing was changed: config: ", "batch is a str", "lr is a str",
        "; data_state: ", "'words'", "; train_state: it is a str, not a dict"}) {
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  EXPECT_EQ(read_file(folder / "a.pt"), before);

  damaged = whole;
  damaged.set("config", base::Value());
  damaged.set("train_state", base::Value());
  checkpoint::save(folder / "a.pt", damaged);
  result = folder.run(words("train --resume --checkpoint a.pt --epochs 2"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("'a.pt' has no entry 'config', 'train_state'; "));
}

TEST(TrainCommand, FullOutputIsOneSentence) {
  Folder folder;
  const Result result = folder.run(words(kSmall + "64"), "/dev/full");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("could not be written: No space left on device"));
  EXPECT_EQ(lines(result.err).size(), 1U) << result.err;
}

TEST(TrainCommand, PrintConfigShowsTheRunInFullAndTrainsNothing) {
  Folder folder;
  const Result result = folder.run(
      words("train --print-config --optimizer sgd --precision fp16 --warmup-steps 5 --batch 32"));
  EXPECT_EQ(result.exit_code, 0);
  for (const char* line : {"optimizer = sgd\n", "lr = 0.01\n", "scaler = on\n", "batch = 32\n",
                           "schedule = cosine\n", "validate-precision = fp16\n", "ops = on\n",
                           "ops-choices = on\n", "allocator = on\n", "epochs = 1\n"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
}

TEST(TrainCommand, TheAllocatorChangesNoNumberAndSaysWhatItDid) {
  Folder folder;
  const std::string run =
      "train --model mlp --hidden 512 --data synthetic --batch 64 --threads 1 --examples 256 "
      "--precision bf16 --clip 1 --allocator ";
  const Result on = folder.run(words(run + "on --csv a.csv --json a.json --checkpoint a.pt"));
  const Result off = folder.run(words(run + "off --csv b.csv --json b.json --checkpoint b.pt"));
  ASSERT_EQ(on.exit_code, 0) << on.err;
  ASSERT_EQ(off.exit_code, 0) << off.err;
  EXPECT_EQ(without_times(read_file(folder / "a.csv")), without_times(read_file(folder / "b.csv")));
  EXPECT_TRUE(is_same_run(folder / "a.pt", folder / "b.pt"));
  EXPECT_THAT(on.out, HasSubstr("Large tensors: at most "));
  EXPECT_THAT(on.out, HasSubstr(" requests from the cache."));
  EXPECT_THAT(off.out, Not(HasSubstr("Large tensors")));
  EXPECT_THAT(read_file(folder / "a.json"), HasSubstr("\"allocator\": {\"live_bytes\":"));
  EXPECT_THAT(read_file(folder / "b.json"), HasSubstr("\"allocator\": null}"));
}

TEST(TrainCommand, HelpNamesEveryOption) {
  Folder folder;
  const Result result = folder.run({"train", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* option : {"--precision",    "--validate-precision",
                             "--optimizer",    "--lr",
                             "--weight-decay", "--clip",
                             "--accumulate",   "--warmup-steps",
                             "--batch",        "--seed",
                             "--threads",      "--epochs",
                             "--steps",        "--limit",
                             "--device",       "--data",
                             "--data-path",    "--model",
                             "--checkpoint",   "--resume",
                             "--csv",          "--json",
                             "--print-config", "--master-weights",
                             "--ema",          "--keep-last",
                             "--keep-best",    "--checkpoint-every-steps"}) {
    EXPECT_THAT(result.out, HasSubstr(option));
  }
}

}  // namespace
}  // namespace torchamp::cli::test
