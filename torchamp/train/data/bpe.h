#pragma once
// BytePairEncoding: a tokenizer over bytes, trained on the text at hand. Windows of tokens are
// text.h's business.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::train {

/// Byte-pair encoding: tokens 0 to 255 are the bytes, and token 256 + i is the pair of tokens
/// merges()[i]. Any string of bytes can be encoded, and decode(encode(text)) == text.
///
/// A text is first cut into words, which no token crosses. A word is a run of letters (ASCII
/// letters and all bytes above 127), of digits or of other signs, with the one space before it; or
/// a run of white space, which leaves its last space to the word that follows. After 64 bytes a
/// word is cut.
///
/// Training merges, again and again, the pair of neighbours that occurs most often, counting every
/// place in every word; among equals the one with the smallest (left, right). It ends at
/// vocab_size, or when no pair occurs twice. The result depends on the text alone.
///
/// Thread safety: const methods may run on several threads at once.
/// Source: Sennrich, Haddow, Birch 2016, "Neural machine translation of rare words with subword
/// units";
///         over bytes as in Radford et al. 2019.
class TORCHAMP_API BytePairEncoding {
 public:
  using Pair = std::pair<int32_t, int32_t>;

  /// Bytes alone, nothing merged.
  BytePairEncoding() : BytePairEncoding(std::vector<Pair>{}) {}
  /// Errors: UsageError unless 256 <= vocab_size <= 2^20.
  static BytePairEncoding train(std::string_view text, int64_t vocab_size);
  /// Errors: CheckpointError for a dict that state_dict() cannot have made.
  static BytePairEncoding from_state_dict(const base::StateDict& state);

  std::vector<int32_t> encode(std::string_view text) const;
  /// Errors: UsageError for a token outside [0, vocab_size()).
  std::string decode(const std::vector<int32_t>& tokens) const;

  int64_t vocab_size() const { return static_cast<int64_t>(bytes_of_.size()); }
  const std::vector<Pair>& merges() const { return merges_; }
  /// {"kind": "byte_bpe", "version": 1, "merges": int64 [M, 2]}.
  base::StateDict state_dict() const;

 private:
  explicit BytePairEncoding(std::vector<Pair> merges);
  void merge_word(std::vector<int32_t>& tokens) const;

  std::vector<Pair> merges_;
  std::unordered_map<uint64_t, int32_t> token_of_;  // by pair
  std::vector<std::string> bytes_of_;               // by token
};

}  // namespace torchamp::train
