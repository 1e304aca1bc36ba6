#pragma once
// A plain text as windows of tokens, for language models.

#include "torchamp/train/data/dataset.h"

namespace torchamp::train {

/// Opens the text file `options.path`: the last tenth of its bytes is for validation, the rest for
/// training and for the tokenizer, which options.state gives when a run is resumed.
///
/// Window i is the tokens i*T to i*T+T of its part: the first T are the input, the last T the
/// target. Tokens after the last whole window are left out.
///
/// Errors: as open_dataset().
DatasetPair open_text(const DataOptions& options);

}  // namespace torchamp::train
