#pragma once
// What the trainer reads: a Dataset that makes batches from indices, and open_dataset(), which
// finds one by name. Reading ahead is loader.h's work; the formats have a file each beside this
// one.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::train {

// Legend: B batch, C channels, H height, W width, T context in tokens.

/// Examples stacked along a first dimension, contiguous, on the CPU.
struct Batch {
  at::Tensor input;   ///< images [B, C, H, W] or features [B, ...] float32; text [B, T] int64
  at::Tensor target;  ///< class of each example [B] int64; text: the next token [B, T] int64
};

/// What a model must know to fit the data.
struct DatasetInfo {
  std::string name = {};
  std::vector<int64_t> input_shape = {};  ///< of one example, without B
  at::ScalarType input_dtype = at::ScalarType::Float;
  int64_t num_classes = 0;  ///< for text, the vocabulary
  bool is_text = false;
};

/// A finite list of examples.
///
/// Thread safety: every method may run on several threads at once. Loader threads call collate();
/// keep it to plain loops, since a parallel ATen op there starts a second team of OpenMP threads.
class TORCHAMP_API Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset();

  virtual int64_t size() const = 0;
  /// The batch of the examples `indices`, in that order.
  ///
  /// Errors: c10::IndexError for an index outside [0, size()).
  virtual Batch collate(const std::vector<int64_t>& indices) const = 0;
  virtual const DatasetInfo& info() const = 0;
};

/// What to train on, what to validate on, and what a checkpoint must keep to read the same data
/// again.
struct DatasetPair {
  std::shared_ptr<Dataset> train = {};
  std::shared_ptr<Dataset> validation = {};
  base::StateDict state = {};  ///< empty for images; the tokenizer for text
};

/// Made-up examples; see synthetic.h.
struct SyntheticShape {
  bool tokens = false;  ///< text-like: shape and num_classes give way to context and vocab_size
  std::vector<int64_t> shape = {1, 28, 28};
  int64_t num_classes = 10;
  int64_t num_train = 1024;
  int64_t num_validation = 256;
};

struct DataOptions {
  std::string name = {};      ///< one of dataset_names()
  std::string path = {};      ///< the folder, or the text file; empty where none is needed
  int64_t limit = 0;          ///< train on the first `limit` examples; 0 means all
  uint64_t seed = 0;          ///< of synthetic data; files do not depend on it
  int64_t context = 256;      ///< text: tokens a window
  int64_t vocab_size = 8192;  ///< text: at most so many tokens, 256 or more
  SyntheticShape synthetic = {};
  const base::StateDict* state = nullptr;  ///< DatasetPair::state of the run that is resumed
};

/// The accepted names: mnist, fashion-mnist, cifar10, text, synthetic.
TORCHAMP_API const std::vector<std::string>& dataset_names();

/// Opens the data set `options.name`.
///
/// Images become float32, (pixel / 255 - mean) / std with the data set's usual constants: mnist
/// 0.1307 and 0.3081, fashion-mnist 0.2860 and 0.3530, cifar10 (0.4914, 0.4822, 0.4465) and
/// (0.2470, 0.2435, 0.2616). Validation is the test set of the image formats and the last tenth of
/// a text.
///
/// Errors: UsageError for an unknown name, a missing path or a size out of range; DataError, with
/// file,
///         byte and what was expected, for files that are missing, cut short or damaged;
///         CheckpointError for a state that is no tokenizer.
TORCHAMP_API DatasetPair open_dataset(const DataOptions& options);

}  // namespace torchamp::train
