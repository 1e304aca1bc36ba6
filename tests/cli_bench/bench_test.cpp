// torchamp bench from outside: its JSON, its table, its errors and exit codes.

#include <csignal>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli_bench/run_command.h"

namespace torchamp::cli {
namespace {

using Json = nlohmann::json;

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

// One run for the tests below: small, and with a fixed number of steps.
const Output& small_run() {
  static const Output output = run_command(
      "bench --model cnn --batch 4 --precision fp32,bf16,fp16 --rounds 3 --warmup 1 --threads 1 "
      "--clip 1 --seed 3 --json -");
  return output;
}

TEST(Bench, JsonHasTheKeysThatTheDocumentationLists) {
  ASSERT_EQ(small_run().exit_code, 0) << small_run().err;
  const Json json = Json::parse(small_run().out);
  EXPECT_EQ(keys(json), (std::set<std::string>{"machine", "model", "batch", "threads", "results"}));
  EXPECT_EQ(json["model"], "cnn");
  EXPECT_EQ(json["batch"], 4);
  EXPECT_EQ(json["threads"], 1);
  ASSERT_EQ(json["results"].size(), 3u);
  for (const Json& result : json["results"]) {
    std::set<std::string> names = keys(result);
    names.erase("note");  // only where there is something to say
    EXPECT_EQ(names,
              (std::set<std::string>{"precision", "examples_per_s", "step_ms_median", "step_ms_min",
                                     "peak_tensor_bytes", "peak_process_bytes", "step_ms_spread",
                                     "phase_ms", "loss_first", "loss_last", "skipped_steps",
                                     "speedup_vs_fp32", "allocator"}));
    EXPECT_TRUE(result["allocator"]["hits"].is_number());
    EXPECT_GE(result["allocator"]["peak_held_bytes"], result["allocator"]["peak_live_bytes"]);
    EXPECT_EQ(keys(result["phase_ms"]),
              (std::set<std::string>{"data", "forward", "backward", "optimizer"}));
  }
}

TEST(Bench, FiguresAgreeWithEachOther) {
  const Json json = Json::parse(small_run().out);
  const double fp32_ms = json["results"][0]["step_ms_median"];
  const char* names[] = {"fp32", "bf16", "fp16"};
  for (size_t i = 0; i < 3; ++i) {
    const Json& result = json["results"][i];
    EXPECT_EQ(result["precision"], names[i]);
    const double median = result["step_ms_median"];
    EXPECT_GT(result["step_ms_min"], 0);
    EXPECT_LE(result["step_ms_min"], median);
    EXPECT_GE(result["step_ms_spread"], 0);
    EXPECT_NEAR(result["examples_per_s"], 4000 / median, 1e-6 * 4000 / median);
    EXPECT_NEAR(result["speedup_vs_fp32"], fp32_ms / median, 1e-6 * fp32_ms / median);
    EXPECT_GT(result["peak_process_bytes"], result["peak_tensor_bytes"]);
    // At the first scale, 65536, an fp16 gradient above 1 overflows and the step is skipped.
    EXPECT_LE(result["skipped_steps"], result["precision"] == "fp16" ? 4 : 0);
  }
}

// The same weights and data in every precision: bf16 keeps 8 bits and fp16 11, and a loss of 2.3 is
// a mean over logits of about 1, so the first losses differ by less than 2^-8 x 2.3 x a few.
TEST(Bench, EveryPrecisionBeginsWithTheSameWeightsAndData) {
  const Json json = Json::parse(small_run().out);
  const double fp32 = json["results"][0]["loss_first"];
  EXPECT_NEAR(json["results"][1]["loss_first"], fp32, 0.05);
  EXPECT_NEAR(json["results"][2]["loss_first"], fp32, 0.01);
  EXPECT_NE(json["results"][0]["loss_last"], fp32);
}

// cnn's weights, gradients and two AdamW moments are held in fp32 whatever autocast computes in.
TEST(Bench, PeakTensorBytesCoverWeightsGradientsAndMoments) {
  const Json json = Json::parse(small_run().out);
  const int64_t fp32 = json["results"][0]["peak_tensor_bytes"];
  const int64_t bf16 = json["results"][1]["peak_tensor_bytes"];
  EXPECT_GT(fp32, 100'000);
  EXPECT_GT(bf16, 100'000);
  const Json again = Json::parse(run_command("bench --model cnn --batch 4 --precision fp32 "
                                             "--rounds 1 --warmup 0 --threads 1 --clip 1 --json -")
                                     .out);
  EXPECT_EQ(again["results"][0]["peak_tensor_bytes"], fp32);  // memory has no noise
}

TEST(Bench, TheSameSeedGivesTheSameLosses) {
  const char* command =
      "bench --model cnn --batch 4 --precision fp32 --rounds 2 --warmup 0 --threads 1 --json - "
      "--optimizer sgd --seed ";
  const auto losses = [&](const char* seed) {
    const Json result = Json::parse(run_command(std::string(command) + seed).out)["results"][0];
    return std::make_pair(result["loss_first"].get<double>(), result["loss_last"].get<double>());
  };
  const auto first = losses("5");
  EXPECT_EQ(losses("5"), first);
  EXPECT_NE(losses("6"), first);
}

TEST(Bench, SpeedupIsNullWithoutFp32) {
  const Output output =
      run_command("bench --model cnn --batch 2 --precision bf16 --rounds 1 --warmup 0 --json -");
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_TRUE(Json::parse(output.out)["results"][0]["speedup_vs_fp32"].is_null());
}

TEST(Bench, PrintsATableWithARowAPrecision) {
  const Output output = run_command(
      "bench --model cnn --batch 2 --precision fp32,bf16 --rounds 1 --warmup 0 --threads 1");
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_NE(output.out.find("cnn, batch 2, cpu, 1 threads, channels_last, adamw\n"),
            std::string::npos)
      << output.out;
  EXPECT_NE(output.out.find("\nfp32 "), std::string::npos) << output.out;
  EXPECT_NE(output.out.find("\nbf16 "), std::string::npos) << output.out;
  EXPECT_NE(output.out.find("1.00x"), std::string::npos) << output.out;
}

TEST(Bench, EndsWith130OnCtrlCAndSaysThatNothingWasWritten) {
  const Output output = run_and_signal("bench --model cnn --precision fp32 --rounds 100000", SIGINT,
                                       "memory of fp32");
  EXPECT_EQ(output.exit_code, 130);
  EXPECT_NE(output.err.find("interrupted; nothing was written\n"), std::string::npos);
}

TEST(Bench, AFullDiskIsAnErrorAfterTheTable) {
  const Output output = run_command(
      "bench --model cnn --batch 2 --precision fp32 --rounds 1 --warmup 0 --json /dev/full");
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_NE(output.out.find("\nfp32 "), std::string::npos);
  EXPECT_NE(output.err.find("torchamp: [--json] '/dev/full' could not be written: "),
            std::string::npos)
      << output.err;
}

void expect_usage_error(const std::string& arguments, const std::string& sentence) {
  const Output output = run_command("bench " + arguments);
  EXPECT_EQ(output.exit_code, 2) << arguments;
  EXPECT_EQ(output.out, "") << arguments;
  EXPECT_EQ(output.err.find("torchamp: " + sentence), 0u) << output.err;
  EXPECT_EQ(output.err.find('\n'), output.err.size() - 1) << "more than a line: " << output.err;
}

TEST(Bench, RefusesWhatItDoesNotKnowInOneSentence) {
  expect_usage_error("--model vgg",
                     "[--model] 'vgg' is not a model; one of mlp, cnn, resnet18, gpt is accepted.");
  expect_usage_error("--precision fp32,fp8",
                     "[--precision] 'fp8' is not a precision; fp32, bf16 or fp16 is accepted.");
  expect_usage_error("--device tpu", "[--device] 'tpu' is not a device;");
  expect_usage_error("--batch 0", "--batch: ");
  expect_usage_error("--batch -4", "--batch: ");
  expect_usage_error("--rounds -1", "--rounds: ");
  expect_usage_error("--clip -1", "--clip: ");
  expect_usage_error("--optimizer lamb", "--optimizer: ");
  expect_usage_error("--model mlp --layout channels_last",
                     "[--layout] channels_last was asked for, but mlp has no images;");
  expect_usage_error("--json /", "[--json] '/' is a folder;");
  expect_usage_error("--json /nowhere/at/all.json",
                     "[--json] '/nowhere/at/all.json' cannot be written: there is no folder");
}

}  // namespace
}  // namespace torchamp::cli
