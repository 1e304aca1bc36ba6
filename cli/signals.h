#pragma once
// Ctrl-C and SIGTERM: the first asks the run to end in good order, the second ends it at once.

namespace torchamp::cli {

/// From now on SIGINT and SIGTERM only set what stop_signal() returns; a second one of either ends
/// the process with 128 + its number.
void install_stop_handlers();

/// SIGINT or SIGTERM once it has come, else 0.
int stop_signal();

}  // namespace torchamp::cli
