// The command with values and files that no one means: one line on stderr, at once.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/command.h"

namespace torchamp::cli::test {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kSmall =
    words("train --model mlp --hidden 8 --data synthetic --examples 16 --threads 1");

struct Case {
  std::vector<std::string> arguments;
  int exit_code;
  std::string text;
};

std::vector<std::string> small(std::vector<std::string> more) {
  more.insert(more.begin(), kSmall.begin(), kSmall.end());
  return more;
}

void expect_one_line(Folder& folder, const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    const Result result = folder.run(each.arguments);
    const std::string which = ::testing::PrintToString(each.arguments).substr(0, 200);
    EXPECT_EQ(result.exit_code, each.exit_code) << which << result.err;
    EXPECT_THAT(result.err, HasSubstr(each.text)) << which;
    EXPECT_EQ(lines(result.err).size(), 1U) << which << result.err;
  }
}

TEST(BadInput, UnknownSubcommandIsNamed) {
  Folder folder;
  expect_one_line(folder, {{{"frobnicate"}, 2, "'frobnicate' is not a subcommand; accepted are: "},
                           {{}, 2, "A subcommand is required"}});
}

TEST(BadInput, EmptyValueIsNoDefault) {
  Folder folder;
  expect_one_line(folder, {{small({"--lr", ""}), 2, "--lr: an empty value was given"},
                           {small({"--momentum", ""}), 2, "--momentum: an empty value"},
                           {small({"--limit", ""}), 2, "--limit: an empty value was given"},
                           {small({"--checkpoint", ""}), 2, "--checkpoint: an empty value"},
                           {{"bench", "--seconds", ""}, 2, "--seconds"}});
}

TEST(BadInput, NumbersOutsideEveryRange) {
  Folder folder;
  expect_one_line(folder,
                  {{small({"--seed", "9223372036854775808"}), 2, "from 0 to 9223372036854775806"},
                   {small({"--lr", "1e38"}), 2, "lr is 1e+38; a number above 0, at most 1e15,"},
                   {small({"--weight-decay", "1e308"}), 2, "a number from 0 to 1e15 is accepted"},
                   {{"bench", "--seconds", "nan"}, 2, "[--seconds] nan"},
                   {{"bench", "--clip", "nan"}, 2, "[--clip] nan"}});
}

TEST(BadInput, LongAndSplitValuesStayOneReadableLine) {
  Folder folder;
  expect_one_line(folder, {{{"train", "--model", "a\nb"}, 2, "'a b' is not known; accepted are"}});
  const Result result = folder.run({"train", "--model", std::string(100000, 'x')});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_LT(result.err.size(), 2100U);
}

TEST(BadInput, ModelLargerThanMemory) {
  Folder folder;
  std::vector<std::string> arguments = words("train --model mlp --data synthetic --hidden");
  arguments.emplace_back("2147483647,2147483647");
  expect_one_line(folder, {{arguments, 1, "[memory] "}});
}

TEST(BadInput, FilesThatCannotBeWrittenAreRefusedBeforeTraining) {
  Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_one_line(
      folder, {{small({"--checkpoint", "/dev/null"}), 2, "'/dev/null' was not written"},
               {small({"--checkpoint", "pipe"}), 2, "'pipe' was not written"},
               {small({"--checkpoint", std::string(252, 'x')}), 2, "File name too long"},
               {small({"--csv", "pipe"}), 2, "No such device or address"},
               {small({"--csv", "a", "--json", "./a"}), 2, "is the file of --csv too"},
               {small({"--checkpoint", "a", "--csv", "a"}), 2, "is the file of --checkpoint too"},
               {{"bench", "--model", "mlp", "--json", "."}, 2, "[--json] '.' is a folder"}});
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(BadInput, HelpIntoAFullDiskIsAFailure) {
  Folder folder;
  const Result result = folder.run({"train", "--help"}, "/dev/full");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace torchamp::cli::test
