// torchamp inspect and convert, as a user runs them.

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "checkpoint/archive.h"
#include "checkpoint/checkpoint_support.h"
#include "cli/command.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/safetensors.h"

namespace torchamp::cli::test {
namespace {

using base::StateDict;
using base::Value;
using nlohmann::json;
using std::string_literals::operator""s;
using ::testing::HasSubstr;
using ::testing::Not;

// A dict of the given entries, in this order.
StateDict dict(std::initializer_list<std::pair<StateDict::Key, Value>> entries) {
  StateDict result;
  for (const auto& [key, value] : entries) result.set(key, value);
  return result;
}

StateDict weights() {
  return dict({{"fc.weight", torch::arange(6.0F).reshape({2, 3})},
               {"fc.bias", torch::tensor({-8.0F, 0.5F})},
               {"count", torch::tensor(7)}});
}

// What a training run in Python saves.
StateDict training() {
  const StateDict state = dict({{"step", torch::tensor(5.0F)}, {"exp_avg", torch::ones({2, 3})}});
  const StateDict group = dict({{"lr", 0.125},
                                {"betas", base::Tuple{{0.9, 0.999}}},
                                {"amsgrad", false},
                                {"decoupled_weight_decay", true},
                                {"params", base::List{{0}}}});
  return dict({{"epoch", 3},
               {"model_state_dict", weights()},
               {"optimizer_state_dict", dict({{"state", dict({{int64_t{0}, state}})},
                                              {"param_groups", base::List{{group}}}})},
               {"scaler_state_dict", dict({{"scale", 1024.0},
                                           {"growth_factor", 2.0},
                                           {"backoff_factor", 0.5},
                                           {"growth_interval", 2000},
                                           {"_growth_tracker", 17}})},
               {"loss", 0.25},
               {"rng_state", torch::zeros({5056}, at::kByte)}});
}

StateDict with_faults() {
  return dict({{"good", torch::ones({3})},
               {"bad", torch::tensor({NAN, 2.0F, -INFINITY, NAN, -3.0F})},
               {"half", torch::tensor({INFINITY}, at::kHalf)},
               {"loss", NAN}});
}

json inspect_json(Folder& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "inspect");
  arguments.emplace_back("--json");
  const Result result = folder.run(arguments);
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

// The entry whose key is `key`, a path.
json entry(const json& document, const json& key) {
  for (const json& each : document.at("entries")) {
    if (each.at("key") == key) return each;
  }
  ADD_FAILURE() << key << " is not in " << document.dump();
  return {};
}

TEST(Inspect, ShowsTheTreeAndWhatItMeans) {
  Folder folder;
  checkpoint::save(folder / "last.pt", training());
  const Result result = folder.run({"inspect", "last.pt"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* text :
       {"last.pt: .pt (zip), ", "epoch 3, loss 0.25, lr 0.125, loss scale 1024\n",
        "model_state_dict", "float32  (2, 3)     24 bytes  max 5\n", "max 8\n", "= 7\n",
        "AdamW state of 1 parameter, step 5, lr 0.125", "(0.9, 0.999)",
        "GradScaler state: scale 1024, 17 of 2000 steps without overflow until it grows",
        "state of a CPU random generator", "6 tensors, ", "\nall finite\n"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

// Views whose elements share memory: 0 1 / 1 2 / 2 3, four times one number, and 2^60 of 61.
TEST(Inspect, ReadsTensorsThatOverlapThemselves) {
  Folder folder;
  const at::Tensor numbers = torch::tensor({0.0F, NAN, 2.0F, 3.0F});
  checkpoint::save(folder / "windows.pt", dict({{"w", numbers.as_strided({3, 2}, {1, 1})}}));
  const Result windows = folder.run({"inspect", "windows.pt", "--check"});
  EXPECT_EQ(windows.exit_code, 1) << windows.out;
  EXPECT_THAT(windows.out, HasSubstr("2 NaN"));
  EXPECT_EQ(folder.run({"inspect", "windows.pt", "--diff", "windows.pt"}).exit_code, 0);

  checkpoint::save(folder / "one.pt", dict({{"e", torch::ones({1}).expand({4})}}));
  checkpoint::save(folder / "two.pt", dict({{"e", torch::full({1}, 2.0F).expand({4})}}));
  checkpoint::save(folder / "four.pt", dict({{"e", torch::ones({4})}}));
  EXPECT_EQ(folder.run({"inspect", "one.pt", "--diff", "four.pt"}).exit_code, 0);
  EXPECT_THAT(folder.run({"inspect", "one.pt", "--diff", "two.pt"}).out,
              HasSubstr("4 of 4 elements differ, by at most 1"));

  at::Tensor few = torch::zeros({61});
  few[60] = INFINITY;
  const std::vector<int64_t> twos(60, 2);
  const std::vector<int64_t> ones(60, 1);
  checkpoint::save(folder / "many.pt", dict({{"m", few.as_strided(twos, ones)}}));
  EXPECT_EQ(folder.run({"inspect", "many.pt", "--check"}).exit_code, 1);
  const Result refused = folder.run({"convert", "many.pt", "many.safetensors"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("repeat their memory"));
}

TEST(Inspect, ReadsEveryFormatByItsContent) {
  Folder folder;
  const std::string golden_folder = TORCHAMP_GOLDEN_DIR "/checkpoint/";
  write_file(folder / "a.pt", read_file(golden_folder + "safetensors/names.safetensors"));
  const json safetensors = inspect_json(folder, {"a.pt"});
  EXPECT_EQ(safetensors.at("format"), "safetensors");
  EXPECT_EQ(safetensors.at("metadata"), json({{"for\xc3\xaat", "pt \"\n"}}));
  EXPECT_EQ(safetensors.at("summary").at("bytes"), 58);
  const json all = inspect_json(folder, {golden_folder + "safetensors/dtypes.safetensors"});
  EXPECT_EQ(all.at("summary").at("bytes_by_dtype").size(), 19U);
  // The bytes 0 and 1, 2 and 3, ... as little-endian halves: the largest is 0x0B0A.
  const at::Tensor largest = torch::tensor({0x0B0A}, at::kShort).view(at::kHalf).to(at::kDouble);
  EXPECT_EQ(entry(all, {"float16"}).at("max_abs"), largest.item<double>());
  const json zip = inspect_json(folder, {golden_folder + "2.15.0/training.pt", "--verify"});
  EXPECT_EQ(zip.at("format"), ".pt (zip)");
  EXPECT_EQ(zip.at("verified"), true);
  EXPECT_EQ(zip.at("summary").at("all_finite"), true);
  const json legacy = inspect_json(folder, {golden_folder + "1.13.1/legacy/training.pt"});
  EXPECT_EQ(legacy.at("format"), ".pt (as before PyTorch 1.6)");
  EXPECT_EQ(legacy.at("run"), zip.at("run"));
}

TEST(Inspect, ClaimsNoChecksumsThatAFileHasNot) {
  Folder folder;
  const std::string golden_folder = TORCHAMP_GOLDEN_DIR "/checkpoint/";
  const std::string legacy = golden_folder + "1.13.1/legacy/training.pt";
  const Result result = folder.run({"inspect", legacy, "--verify"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no checksums: files before PyTorch 1.6 have none\n"));
  EXPECT_EQ(inspect_json(folder, {legacy, "--verify"}).at("verified"), false);
}

TEST(Inspect, SaysWhatAFileOfOnePartIs) {
  Folder folder;
  const StateDict run = training();
  const auto head = [&](const StateDict& state) {
    checkpoint::save(folder / "a.pt", state);
    return lines(folder.run({"inspect", "a.pt"}).out).at(1);
  };
  EXPECT_EQ(head(run.at("optimizer_state_dict").to_dict()),
            "AdamW state of 1 parameter, step 5, lr 0.125");
  EXPECT_EQ(head(run.at("scaler_state_dict").to_dict()),
            "GradScaler state: scale 1024, 17 of 2000 steps without overflow until it grows");
  EXPECT_EQ(head(weights()), "weights of a model");
  const StateDict group =
      dict({{"lr", 0.1}, {"nesterov", false}, {"params", base::List{{0, 1, 2}}}});
  EXPECT_EQ(head(dict({{"state", StateDict()}, {"param_groups", base::List{{group, group}}}})),
            "SGD state of 6 parameters, still empty, lr 0.1");
  EXPECT_EQ(head(StateDict()), "no tensors");
  // Counts are shown whole, however large.
  EXPECT_EQ(
      head(dict(
          {{"epoch", 1234567}, {"loss", 0.1234567}, {"train_state", dict({{"step", 16777217}})}})),
      "epoch 1234567, step 16777217, loss 0.123457");
}

TEST(Inspect, SaysWhatATrainersCheckpointHolds) {
  Folder folder;
  ASSERT_EQ(folder
                .run(words("train --model mlp --hidden 8 --data synthetic --examples 64 --batch 16 "
                           "--threads 1 --precision fp16 --ema 0.5 --keep-best --checkpoint a.pt"))
                .exit_code,
            0);
  const Result result = folder.run({"inspect", "a.pt", "--all"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines(result.out).at(1), ::testing::StartsWith("epoch 1, step 4, loss "));
  for (const char* text :
       {", loss scale 65536, precision fp16, written by torchamp ", "dict of 4: weights of a model",
        "AdamW state of 4 parameters, step 4, lr 0.001",
        "GradScaler state: scale 65536, 4 of 2000 steps without overflow until it grows",
        "what the scaler did: 4 steps applied, 0 skipped", "learning-rate schedule, step 4",
        "state of the random generators: CPU\n", "averaged weights, updated 4 times",
        "where the run stands, epoch 1, step 4, skipped 0", "options of the run",
        "the best checkpoint so far, step 4, metric "}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

TEST(Inspect, LongValuesEndInDots) {
  Folder folder;
  base::List numbers;
  for (int i = 0; i < 100; ++i) numbers.items.emplace_back(i);
  std::string letters;
  for (int i = 0; i < 100; ++i) letters += "\xc3\xaa";
  checkpoint::save(folder / "a.pt",
                   dict({{"n", numbers}, {"s", letters}, {"q", "it's"}, {"b", base::Bytes{"x"}}}));
  const std::string out = folder.run({"inspect", "a.pt"}).out;
  EXPECT_THAT(out, HasSubstr("26, 27, ...]\n"));  // the next one would begin after 100 characters
  EXPECT_THAT(out, HasSubstr("\xc3\xaa...'\n"));  // whole characters
  EXPECT_THAT(out, HasSubstr("\"it's\""));
  EXPECT_THAT(out, HasSubstr("1 byte\n"));
}

TEST(Inspect, AFileThatIsNoDictHasARowWithoutKeys) {
  Folder folder;
  write_file(folder / "a.pt", make_checkpoint("\x80\x02]K\x07"
                                              "a."));
  const json document = inspect_json(folder, {"a.pt"});
  EXPECT_EQ(document.at("entries").at(0).at("key"), json::array());
  EXPECT_THAT(folder.run({"inspect", "a.pt"}).out, HasSubstr("\n  (value)  [7]\n"));
}

TEST(Inspect, CountsWhatIsNotFinite) {
  Folder folder;
  checkpoint::save(folder / "a.pt", with_faults());
  const json document = inspect_json(folder, {"a.pt"});
  const json bad = entry(document, {"bad"});
  EXPECT_EQ(bad.at("nan"), 2);
  EXPECT_EQ(bad.at("inf"), 1);
  EXPECT_EQ(bad.at("max_abs"), 3.0);
  EXPECT_EQ(entry(document, {"half"}).at("inf"), 1);
  EXPECT_EQ(entry(document, {"loss"}).at("value"), "nan");
  EXPECT_EQ(document.at("summary").at("not_finite"), json({"bad", "half"}));
  EXPECT_EQ(document.at("summary").at("all_finite"), false);
  const Result text = folder.run({"inspect", "a.pt"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("2 NaN, 1 inf, max 3\n"));
  EXPECT_THAT(text.out, HasSubstr("\nnot finite (2): bad, half\n"));
}

// Far more values than a piece holds, the faults at its ends; 3 and 0.5 are numbers of every dtype.
TEST(Inspect, LooksAtEveryValueOfEveryFloatingDtype) {
  Folder folder;
  constexpr int64_t kSize = (int64_t{3} << 20) + 5;
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"float8_e5m2", at::ScalarType::Float8_e5m2}};
  StateDict good;
  StateDict bad;
  for (const auto& [name, dtype] : dtypes) {
    at::Tensor values = torch::full({kSize}, 0.5F);
    values[kSize - 1] = -3;
    good.set(name, values.clone().to(dtype));
    values[0] = -INFINITY;
    values[1] = NAN;
    values[kSize - 2] = -NAN;
    values[kSize / 2] = INFINITY;
    values[kSize - 3] = NAN;
    bad.set(name, values.to(dtype));
  }
  const at::Tensor parts = torch::tensor({1.0F, -4.0F, NAN, INFINITY});
  bad.set("complex64", torch::view_as_complex(parts.reshape({2, 2})));
  checkpoint::save(folder / "good.pt", good);
  checkpoint::save(folder / "bad.pt", bad);
  const json whole = inspect_json(folder, {"good.pt"});
  const json faulty = inspect_json(folder, {"bad.pt"});
  EXPECT_EQ(whole.at("summary").at("all_finite"), true);
  for (const auto& each : dtypes) {
    const json of_good = entry(whole, {each.first});
    EXPECT_EQ(of_good.at("max_abs"), 3.0) << each.first;
    EXPECT_EQ(of_good.at("nan"), 0) << each.first;
    const json of_bad = entry(faulty, {each.first});
    EXPECT_EQ(of_bad.at("max_abs"), 3.0) << each.first;
    EXPECT_EQ(of_bad.at("nan"), 3) << each.first;
    EXPECT_EQ(of_bad.at("inf"), 2) << each.first;
  }
  EXPECT_EQ(entry(faulty, {"complex64"}).at("max_abs"), 4.0);
  EXPECT_EQ(entry(faulty, {"complex64"}).at("nan"), 1);
  EXPECT_EQ(entry(faulty, {"complex64"}).at("inf"), 1);
}

TEST(Inspect, CheckAnswersByExitCode) {
  Folder folder;
  checkpoint::save(folder / "bad.pt", with_faults());
  checkpoint::save(folder / "good.pt", training());
  EXPECT_EQ(folder.run({"inspect", "bad.pt", "--check"}).exit_code, 1);
  EXPECT_EQ(folder.run({"inspect", "good.pt", "--check"}).exit_code, 0);
  EXPECT_EQ(folder.run({"inspect", "absent.pt", "--check"}).exit_code, 2);
  EXPECT_EQ(folder.run({"inspect", "bad.pt", "--check", "--no-values"}).exit_code, 2);
}

TEST(Inspect, SharedStoragesCountOnce) {
  Folder folder;
  const at::Tensor base = torch::ones({100});
  checkpoint::save(folder / "a.pt", dict({{"tied", base}, {"again", base}, {"view", base[3]}}));
  const json document = inspect_json(folder, {"a.pt"});
  EXPECT_EQ(document.at("summary").at("tensors"), 3);
  EXPECT_EQ(document.at("summary").at("elements"), 100);
  EXPECT_EQ(document.at("summary").at("bytes"), 400);
  EXPECT_EQ(entry(document, {"again"}).at("storage_of"), json({"tied"}));

  checkpoint::save(folder / "b.pt", dict({{"view", base[3]}, {"whole", base}}));
  EXPECT_EQ(inspect_json(folder, {"b.pt"}).at("summary").at("elements"), 100);
}

TEST(Inspect, LongListsAreShortened) {
  Folder folder;
  StateDict many;
  for (int i = 0; i < 100; ++i) many.set("w" + std::to_string(i), torch::ones({1}));
  many.set("w70", torch::tensor({NAN}));
  checkpoint::save(folder / "a.pt", many);
  const Result brief = folder.run({"inspect", "a.pt"});
  EXPECT_THAT(brief.out, HasSubstr("... 60 more (--all shows them)"));
  EXPECT_THAT(brief.out, Not(HasSubstr("w99")));
  EXPECT_THAT(brief.out, HasSubstr("not finite (1): w70"));
  EXPECT_THAT(folder.run({"inspect", "a.pt", "--all"}).out, HasSubstr("w99"));
  EXPECT_EQ(inspect_json(folder, {"a.pt"}).at("entries").size(), 100U);
}

TEST(Inspect, NothingFromTheFileReachesTheTerminalAsACommand) {
  Folder folder;
  const std::string evil =
      "\x1b[31m\xc2\x9b"
      "2J\r\n";
  checkpoint::save(folder / "a.pt", dict({{evil, torch::ones({1})}, {"text", evil}}));
  checkpoint::save(folder / "b.pt", dict({{"text", evil + "."}}));
  checkpoint::save_safetensors(folder / "c", dict({{evil, torch::ones({1})}}),
                               dict({{evil, evil}}));
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"inspect", "a.pt"}, {"inspect", "a.pt", "--diff", "b.pt"}, {"inspect", "c"}}) {
    const Result result = folder.run(arguments);
    for (const char* command : {"\x1b", "\xc2\x9b", "\r"}) {
      EXPECT_THAT(result.out, Not(HasSubstr(command)));
    }
  }
  const json document = inspect_json(folder, {"a.pt"});
  EXPECT_EQ(document.at("entries").at(0).at("key").at(0), evil);
}

TEST(Inspect, TensorsThatRepeatTheirStorageCostNoTime) {
  Folder folder;
  // 2^60 elements over a storage of 61, and 2^40 over one of 1.
  const at::Tensor overlapping =
      torch::ones({61}).as_strided(std::vector<int64_t>(60, 2), std::vector<int64_t>(60, 1));
  checkpoint::save(folder / "a.pt",
                   dict({{"overlapping", overlapping},
                         {"expanded", torch::tensor({NAN}).expand({int64_t{1} << 40})}}));
  const json document = inspect_json(folder, {"a.pt"});
  EXPECT_EQ(entry(document, {"overlapping"}).at("nan"), 0);
  EXPECT_EQ(entry(document, {"expanded"}).at("nan"), int64_t{1} << 40);
  EXPECT_EQ(folder.run({"inspect", "a.pt", "--diff", "a.pt"}).exit_code, 0);
}

TEST(InspectDiff, EqualFilesAreEqualWhateverTheirFormat) {
  Folder folder;
  checkpoint::save(folder / "a.pt", with_faults());
  checkpoint::save(folder / "b.pt", with_faults());
  checkpoint::save(folder / "w.pt", weights());
  checkpoint::save_safetensors(folder / "w.safetensors", weights());
  EXPECT_EQ(folder.run({"inspect", "a.pt", "--diff", "b.pt"}).exit_code, 0);
  const Result result = folder.run({"inspect", "w.pt", "--diff", "w.safetensors"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(result.out, "no difference: 3 entries are equal\n");
}

TEST(InspectDiff, EveryKindOfDifferenceIsTold) {
  Folder folder;
  const int64_t big = (int64_t{1} << 53);
  checkpoint::save(folder / "a.pt", dict({{"same", torch::tensor({NAN, 1.0F})},
                                          {"values", torch::tensor({1.0F, 2.0F, 4.0F})},
                                          {"nan", torch::tensor({1.0F})},
                                          {"zero", torch::tensor({0.0F})},
                                          {"long", torch::tensor({big, big})},
                                          {"dtype", torch::tensor({1.0F, 1.001F})},
                                          {"shape", torch::ones({2, 3})},
                                          {"type", 1},
                                          {"epoch", 3},
                                          {"gone", dict({{"x", 1}, {"y", 2}})},
                                          {"list", base::List{{1, 2}}}}));
  checkpoint::save(folder / "b.pt", dict({{"same", torch::tensor({NAN, 1.0F})},
                                          {"values", torch::tensor({1.0F, 2.5F, 3.0F})},
                                          {"nan", torch::tensor({NAN})},
                                          {"zero", torch::tensor({-0.0F})},
                                          {"long", torch::tensor({big, big + 1})},
                                          {"dtype", torch::tensor({1.0F, 1.001F}, at::kBFloat16)},
                                          {"shape", torch::ones({3, 2})},
                                          {"type", 1.0},
                                          {"epoch", 4},
                                          {"list", base::List{{1, 2, 3}}},
                                          {"new", "text"}}));
  const Result result = folder.run({"inspect", "a.pt", "--diff", "b.pt"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out,
            "! values: 2 of 3 elements differ, by at most 1 (relative 0.25)\n"
            "! nan: 1.0 -> nan\n"
            "! zero: same values in other bits\n"
            "! long: 1 of 2 elements differs, by at most 1 (relative 1.11e-16)\n"
            "! dtype: float32 -> bfloat16, 1 of 2 elements differs, by at most 0.001 (relative "
            "0.000999)\n"
            "! shape: (2, 3) -> (3, 2)\n"
            "! type: int 1 -> float 1.0\n"
            "! epoch: 3 -> 4\n"
            "- gone: dict of 2\n"
            "+ list.2: 3\n"
            "+ new: 'text'\n"
            "11 differences; 3 entries are equal\n");
  const json document = inspect_json(folder, {"a.pt", "--diff", "b.pt"});
  EXPECT_EQ(document.at("equal"), false);
  EXPECT_EQ(document.at("num_equal"), 3);
  const json& differences = document.at("differences");
  ASSERT_EQ(differences.size(), 11U);
  EXPECT_EQ(differences[0], json({{"key", {"values"}},
                                  {"kind", "values"},
                                  {"different", 2},
                                  {"elements", 3},
                                  {"max_abs", 1.0},
                                  {"max_relative", 0.25}}));
  EXPECT_EQ(differences[1].at("max_abs"), "inf");
  EXPECT_EQ(differences[7], json({{"key", {"epoch"}}, {"kind", "value"}, {"a", 3}, {"b", 4}}));
  EXPECT_EQ(differences[9].at("key"), json({"list", 2}));
}

TEST(InspectDiff, FlagsAndCountsAreShownAsPythonWritesThem) {
  Folder folder;
  const at::Tensor most = torch::full({1}, -1, at::kLong).view(at::kUInt64);  // 2^64 - 1
  const at::Tensor less = torch::full({1}, -2, at::kLong).view(at::kUInt64);
  checkpoint::save(folder / "a.pt", dict({{"flag", torch::tensor(true)}, {"count", most}}));
  checkpoint::save(folder / "b.pt", dict({{"flag", torch::tensor(false)}, {"count", less}}));
  EXPECT_EQ(folder.run({"inspect", "a.pt", "--diff", "b.pt"}).out,
            "! flag: True -> False\n! count: 18446744073709551615 -> 18446744073709551614\n"
            "2 differences; 0 entries are equal\n");
}

TEST(InspectDiff, AComplexNumberIsOneElement) {
  Folder folder;
  const at::Tensor parts = torch::arange(8.0F).reshape({4, 2});
  const at::Tensor others = parts.clone();
  others[1] += 1;      // both parts
  others[3][1] = 7.5;  // one
  checkpoint::save(folder / "a.pt", dict({{"c", torch::view_as_complex(parts)}}));
  checkpoint::save(folder / "b.pt", dict({{"c", torch::view_as_complex(others)}}));
  EXPECT_THAT(folder.run({"inspect", "a.pt", "--diff", "b.pt"}).out,
              HasSubstr("! c: 2 of 4 elements differ, by at most 1 "));
}

TEST(InspectDiff, LargeTensorsAreComparedInPieces) {
  Folder folder;
  const at::Tensor a = torch::zeros({1500, 3000});
  const at::Tensor b = a.clone();
  b[1499][2999] = 2;
  b[0][0] = -3;
  checkpoint::save(folder / "a.pt", dict({{"w", a.t()}}));
  checkpoint::save(folder / "b.pt", dict({{"w", b.t().contiguous()}}));
  const json document = inspect_json(folder, {"a.pt", "--diff", "b.pt"});
  EXPECT_EQ(document.at("differences").at(0).at("different"), 2);
  EXPECT_EQ(document.at("differences").at(0).at("max_abs"), 3.0);
  EXPECT_EQ(entry(inspect_json(folder, {"a.pt"}), {"w"}).at("max_abs"), 0.0);
}

TEST(Convert, GoesBothWaysWithoutChangingABit) {
  Folder folder;
  checkpoint::save(folder / "last.pt", training());
  const Result there = folder.run({"convert", "last.pt", "model.safetensors"});
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_EQ(there.out,
            "model.safetensors: 3 tensors of 'model_state_dict' in 'last.pt', 40 bytes\n");
  EXPECT_TRUE(same(checkpoint::safetensors_metadata(folder / "model.safetensors"),
                   dict({{"format", "pt"}})));
  const Result back = folder.run({"convert", "model.safetensors", "model.pt"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  const StateDict read = checkpoint::load(folder / "model.pt");
  EXPECT_EQ(read.size(), 3U);
  for (const auto& [key, value] : weights().entries()) EXPECT_TRUE(same(read.at(key), value));
}

TEST(Convert, TakesTheEntryThatIsNamed) {
  Folder folder;
  checkpoint::save(folder / "a.pt", dict({{"nets", dict({{"a.b", weights()}})}, {"epoch", 3}}));
  const Result result = folder.run({"convert", "a.pt", "a.bin", "--key", "nets.a.b"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(same(checkpoint::load(folder / "a.bin"), weights()));
  checkpoint::save(folder / "deep.pt", dict({{"net", weights()}, {"w", torch::ones({1})}}));
  EXPECT_EQ(folder.run({"convert", "deep.pt", "deep.safetensors"}).exit_code, 0);
  EXPECT_TRUE(checkpoint::load_safetensors(folder / "deep.safetensors").contains("net.fc.weight"));
}

TEST(Convert, EndingsMayBeCapitals) {
  Folder folder;
  checkpoint::save(folder / "A.PT", weights());
  EXPECT_EQ(folder.run({"convert", "A.PT", "B.SAFETENSORS"}).exit_code, 0);
  EXPECT_TRUE(checkpoint::is_safetensors(folder / "B.SAFETENSORS"));
  EXPECT_EQ(folder.run({"convert", "B.SAFETENSORS", "C.PTH"}).exit_code, 0);
  EXPECT_EQ(checkpoint::load(folder / "C.PTH").size(), 3U);
}

TEST(Convert, OthersAreRefusedOrLeftOutByName) {
  Folder folder;
  checkpoint::save(folder / "a.pt", with_faults());
  const Result refused = folder.run({"convert", "a.pt", "b.safetensors"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "b.safetensors"));
  const Result result = folder.run({"convert", "a.pt", "b.safetensors", "--skip-others"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("3 tensors of 'a.pt', 34 bytes, left out: 'loss'"));
}

TEST(Convert, ChangesTheDtypeOfFloats) {
  Folder folder;
  const at::Tensor tied = torch::tensor({1.0F, 1e5F});
  checkpoint::save(folder / "a.pt",
                   dict({{"x", tied}, {"y", tied}, {"n", torch::tensor({int64_t{1} << 40})}}));
  Result result = folder.run({"convert", "a.pt", "half.pt", "--dtype", "fp16"});
  EXPECT_THAT(result.out, HasSubstr("floats as float16 (1 of the tensors overflowed to infinity)"));
  const StateDict half = checkpoint::load(folder / "half.pt");
  EXPECT_TRUE(same(half.at("x").to_tensor(), tied.to(at::kHalf)));
  EXPECT_EQ(half.at("x").to_tensor().const_data_ptr(), half.at("y").to_tensor().const_data_ptr());
  EXPECT_TRUE(same(half.at("n").to_tensor(), torch::tensor({int64_t{1} << 40})));
  result = folder.run({"convert", "half.pt", "b.safetensors", "--dtype", "bf16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(checkpoint::load_safetensors(folder / "b.safetensors").at("y").to_tensor().dtype(),
            at::kBFloat16);
}

TEST(Convert, MetadataStaysWithSafetensors) {
  Folder folder;
  const StateDict metadata = dict({{"author", "someone"}});
  checkpoint::save_safetensors(folder / "a.safetensors", weights(), metadata);
  EXPECT_EQ(folder.run({"convert", "a.safetensors", "b.safetensors"}).exit_code, 0);
  EXPECT_EQ(read_file(folder / "b.safetensors"), read_file(folder / "a.safetensors"));
  EXPECT_THAT(folder.run({"convert", "a.safetensors", "b.pt"}).out, HasSubstr("metadata left out"));
}

TEST(InspectAndConvert, BadInputIsOneLine) {
  Folder folder;
  checkpoint::save(folder / "last.pt", training());
  checkpoint::save(folder / "odd.pt", dict({{"net", weights()}, {"epoch", 3}}));
  write_file(folder / "text.pt", "a text of some length, and no checkpoint\n");
  const std::string bytes = read_file(folder / "last.pt");
  write_file(folder / "cut.pt", bytes.substr(0, bytes.size() / 2));
  std::string damaged = bytes;
  damaged[damaged.find("\0\0\0\xc1\0\0\0\x3f"s)] ^= 1;  // the -8 in a tensor's data
  write_file(folder / "damaged.pt", damaged);
  checkpoint::save_safetensors(folder / "good.safetensors", weights());
  write_file(folder / "cut.safetensors", read_file(folder / "good.safetensors").substr(0, 60));
  std::filesystem::create_symlink("last.pt", folder / "link.pt");
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{"inspect"}, 2, "FILE is required"},
      {{"inspect", ""}, 2, "an empty value was given"},
      {{"inspect", "absent.pt"}, 1, "'absent.pt' does not exist"},
      {{"inspect", "."}, 1, "'.' is a folder"},
      {{"inspect", "text.pt"}, 1, "'text.pt' cannot be read"},
      {{"inspect", "cut.pt"}, 1, "'cut.pt' cannot be read"},
      {{"inspect", "damaged.pt", "--verify"}, 1, "'damaged.pt' cannot be read"},
      {{"inspect", "cut.safetensors"}, 1, "Was the file truncated"},
      {{"inspect", "last.pt", "--diff", "absent.pt"}, 2, "'absent.pt' does not exist"},
      {{"inspect", "last.pt", "--diff", "text.pt"}, 2, "'text.pt' cannot be read"},
      {{"convert", "last.pt"}, 2, "TO is required"},
      {{"convert", "absent.pt", "a.pt"}, 1, "'absent.pt' does not exist"},
      {{"convert", ".", "a.pt"}, 1, "'.' is a folder"},
      {{"convert", "text.pt", "a.pt"}, 1, "'text.pt' cannot be read"},
      {{"convert", "cut.safetensors", "a.pt"}, 1, "'cut.safetensors' cannot be read"},
      {{"convert", "last.pt", "last.pt"}, 2, "'last.pt' is the file to read"},
      {{"convert", "last.pt", "link.pt"}, 2, "'link.pt' is the file to read"},
      {{"convert", "last.pt", "a.txt"}, 2, "ends in '.txt'; .pt, .pth, .bin and .safetensors"},
      {{"convert", "last.pt", "a"}, 2, "'a' has no ending; .pt, .pth, .bin and .safetensors"},
      {{"convert", "last.pt", "a.pt", "--key", "nets"},
       2,
       "has no dict 'nets' (--key); those with tensors are: 'model_state_dict'"},
      {{"convert", "last.pt", "a.pt", "--key", "optimizer_state_dict"},
       2,
       "holds 'param_groups', a list, beside the tensors; --skip-others"},
      {{"convert", "last.pt", "a.pt", "--key", "scaler_state_dict", "--skip-others"},
       2,
       "has no tensors to convert"},
      {{"convert", "odd.pt", "a.pt"}, 2, "name the tensors' entry with --key, one of: 'net'"},
      {{"convert", "last.pt", "absent/a.pt"}, 1, "was not written"},
      {{"convert", "last.pt", "a.pt", "--dtype", "int8"}, 2, "--dtype"}};
  for (const Case& each : cases) {
    const Result result = folder.run(each.arguments);
    const std::string which = ::testing::PrintToString(each.arguments);
    EXPECT_EQ(result.exit_code, each.exit_code) << which << result.err;
    EXPECT_THAT(result.err, HasSubstr(each.text)) << which;
    EXPECT_THAT(result.err, Not(HasSubstr("::"))) << which;  // a C++ name
    EXPECT_EQ(lines(result.err).size(), 1U) << which << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "a.pt")) << which;
  }
  EXPECT_EQ(read_file(folder / "last.pt"), bytes);
}

TEST(InspectAndConvert, HelpTellsTheDefaults) {
  Folder folder;
  EXPECT_THAT(folder.run({"inspect", "--help"}).out, HasSubstr("default"));
  EXPECT_THAT(folder.run({"convert", "--help"}).out, HasSubstr("default: as they are"));
}

}  // namespace
}  // namespace torchamp::cli::test
