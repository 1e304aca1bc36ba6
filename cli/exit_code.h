#pragma once
// What the torchamp command returns to the shell; docs/cli.md lists the same numbers.

namespace torchamp::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;         // something went wrong while running
inline constexpr int kUsage = 2;          // wrong usage or configuration
inline constexpr int kInterrupted = 130;  // 128 + SIGINT
inline constexpr int kTerminated = 143;   // 128 + SIGTERM

}  // namespace torchamp::cli
