#include "torchamp/train/metrics.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torchamp/base/error.h"
#include "torchamp/train/metrics_file.h"
#include "torchamp/train/progress.h"
#include "train/toy.h"

namespace torchamp::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics step_metrics(int64_t step) {
  StepMetrics metrics;
  metrics.epoch = 1;
  metrics.num_epochs = 2;
  metrics.step = step;
  metrics.step_in_epoch = step;
  metrics.steps_per_epoch = 20;
  metrics.loss = 0.1;
  metrics.mean_loss = 0.25;
  metrics.lr = 0.001;
  metrics.scale = 65536.0;
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.skipped = true;
  metrics.examples_per_s = 1000.0;
  return metrics;
}

EpochMetrics epoch_metrics(int64_t epoch) {
  EpochMetrics metrics;
  metrics.epoch = epoch;
  metrics.train_loss = 0.5;
  metrics.val_loss = 2.0;
  metrics.val_accuracy = std::nan("");
  metrics.skipped_steps = 3;
  return metrics;
}

TEST(Metrics, CsvRowFollowsItsHeader) {
  EXPECT_EQ(csv_header(), "epoch,step,loss,lr,scale,grad_norm,skipped,examples_per_s");
  EXPECT_EQ(to_csv(step_metrics(7)), "1,7,0.1,0.001,65536,inf,1,1000");
}

TEST(Metrics, JsonHoldsEveryKeyAndNullForWhatIsNotFinite) {
  const std::string json = to_json(epoch_metrics(4));
  EXPECT_THAT(json, HasSubstr("{\"epoch\": 4, \"train_loss\": 0.5, \"val_loss\": 2, "
                              "\"val_accuracy\": null, \"examples_per_s\": 0, \"scale\": 1, "
                              "\"skipped_steps\": 3, \"lr\": 0, \"grad_norm\": 0"));
  EXPECT_THAT(json, Not(HasSubstr("perplexity")));
}

TEST(Metrics, NumbersReadBackAsTheSameDouble) {
  for (const double value : {0.1, 1.0 / 3.0, 6.103515625e-05, 1e300}) {
    EXPECT_EQ(std::stod(shortest(value)), value);
  }
}

TEST(MetricsFile, ContinuesAfterTheStepOfTheCheckpoint) {
  const TemporaryFolder folder;
  {
    MetricsFile file = MetricsFile::csv(folder / "a.csv");
    for (int64_t step = 1; step <= 5; ++step) file.write(to_csv(step_metrics(step)));
  }
  std::ofstream(folder / "a.csv", std::ios::app) << "1,6,0.1";  // cut off in the middle
  MetricsFile::csv(folder / "a.csv", 3).write(to_csv(step_metrics(4)));
  std::string expected = csv_header() + "\n";
  for (int64_t step = 1; step <= 4; ++step) expected += to_csv(step_metrics(step)) + "\n";
  EXPECT_EQ(read_file(folder / "a.csv"), expected);

  {
    MetricsFile file = MetricsFile::json_lines(folder / "a.json");
    for (int64_t epoch = 1; epoch <= 3; ++epoch) file.write(to_json(epoch_metrics(epoch)));
  }
  MetricsFile::json_lines(folder / "a.json", 1).write(to_json(epoch_metrics(2)));
  EXPECT_EQ(read_file(folder / "a.json"),
            to_json(epoch_metrics(1)) + "\n" + to_json(epoch_metrics(2)) + "\n");
}

TEST(MetricsFile, OtherFileIsNotContinued) {
  const TemporaryFolder folder;
  std::ofstream(folder / "notes.csv") << "name,value\n";
  EXPECT_THAT(toy::message_of<base::UsageError>([&] { MetricsFile::csv(folder / "notes.csv", 3); }),
              HasSubstr("holds the line 'name,value'"));
  EXPECT_EQ(read_file(folder / "notes.csv"), "name,value\n");
}

TEST(MetricsFile, FullDiskAndMissingRightsAreTold) {
  MetricsFile file = [] {
    // The header fails already, so the file is one without.
    return MetricsFile::json_lines("/dev/full");
  }();
  EXPECT_THAT(toy::message_of<base::Error>([&] { file.write("x"); }),
              HasSubstr("No space left on device"));
  EXPECT_THAT(toy::message_of<base::UsageError>([] { MetricsFile::csv("/proc/none/a.csv"); }),
              HasSubstr("cannot be opened for writing"));
}

std::string shown(ProgressOptions options) {
  std::FILE* file = std::tmpfile();
  Progress progress(file, options);
  for (int64_t step = 1; step <= 20; ++step) progress.on_step(step_metrics(step));
  progress.on_epoch(epoch_metrics(1));
  const long size = std::ftell(file);
  std::rewind(file);
  std::string text(static_cast<size_t>(size), '\0');
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(Progress, WritesPlainLinesWhereThereIsNoTerminal) {
  const std::string text = shown({});
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, HasSubstr("epoch 1/2  step 2/20  loss 0.2500  1000 examples/s"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11);  // ten an epoch, and the epoch's own
}

TEST(Progress, DrawsABarThatFitsTheTerminalAndIsTakenBack) {
  ProgressOptions options;
  options.is_terminal = true;
  options.width = 60;
  const std::string text = shown(options);
  EXPECT_THAT(text, HasSubstr("\repoch 1/2 [#...................] 1/20"));
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kepoch 1: train loss 0.5000"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Progress, FullDiskIsTold) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Progress progress(full, {});
  EXPECT_THAT(toy::message_of<base::Error>([&] { progress.on_message("x"); }),
              HasSubstr("No space left on device"));
  std::fclose(full);
}

}  // namespace
}  // namespace torchamp::train
