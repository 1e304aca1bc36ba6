#include "torchamp/train/data/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "torchamp/base/error.h"
#include "torchamp/train/data/words.h"

namespace torchamp::train {
namespace {

using Pair = BytePairEncoding::Pair;

constexpr int32_t kBytes = 256;
constexpr int64_t kMaxVocabSize = int64_t{1} << 20;

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

std::vector<int32_t> as_bytes(std::string_view word) {
  std::vector<int32_t> tokens;
  tokens.reserve(word.size());
  for (const char c : word) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// Puts `merged` in place of every (left, right), from the left on; returns whether there was one.
bool replace_pair(std::vector<int32_t>& tokens, Pair pair, int32_t merged) {
  size_t out = 0;
  for (size_t in = 0; in < tokens.size(); ++out) {
    const bool match =
        in + 1 < tokens.size() && tokens[in] == pair.first && tokens[in + 1] == pair.second;
    tokens[out] = match ? merged : tokens[in];
    in += match ? 2 : 1;
  }
  const bool changed = out < tokens.size();
  tokens.resize(out);
  return changed;
}

// Counts of pairs kept up to date from merge to merge: only words that hold the merged pair are
// visited, and in them only the neighbours of the places that change.
class Trainer {
 public:
  explicit Trainer(std::string_view text) {
    std::unordered_map<std::string_view, size_t> index_of;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, word_length(text));
      text.remove_prefix(word.size());
      const auto [entry, is_new] = index_of.try_emplace(word, words_.size());
      if (is_new) words_.push_back({as_bytes(word), 0});
      ++words_[entry->second].count;
    }
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& tokens = words_[w].tokens;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) add(tokens[i], tokens[i + 1], w);
    }
    for (const auto& [key, use] : uses_) offer(key, use.count);
  }

  std::vector<Pair> run(size_t num_merges) {
    std::vector<Pair> merges;
    while (merges.size() < num_merges && !candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      const auto use = uses_.find(best.key);
      const int64_t count = use == uses_.end() ? 0 : use->second.count;
      if (count != best.count) {  // lowered by merges since it was offered; counts never rise
        offer(best.key, count);
        continue;
      }
      const Pair pair(static_cast<int32_t>(best.key >> 32), static_cast<int32_t>(best.key));
      const std::vector<size_t> words = std::move(use->second.words);
      merges.push_back(pair);
      merge(pair, kBytes + static_cast<int32_t>(merges.size()) - 1, words);
      uses_.erase(best.key);
    }
    return merges;
  }

 private:
  struct Word {
    std::vector<int32_t> tokens;
    int64_t count;
  };
  struct Use {
    int64_t count = 0;
    std::vector<size_t> words;  // all that hold the pair, and some that held it
  };
  struct Candidate {
    int64_t count;
    uint64_t key;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  void add(int32_t left, int32_t right, size_t word) {
    Use& use = uses_[key_of(left, right)];
    use.count += words_[word].count;
    if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
  }

  void offer(uint64_t key, int64_t count) {
    if (count >= 2) candidates_.push({count, key});
  }

  void merge(Pair pair, int32_t merged, const std::vector<size_t>& words) {
    std::vector<uint64_t> made;
    for (const size_t w : words) {
      std::vector<int32_t>& tokens = words_[w].tokens;
      remove_touched(tokens, pair, words_[w].count);
      if (!replace_pair(tokens, pair, merged)) continue;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        if (tokens[i] != merged && tokens[i + 1] != merged) continue;
        add(tokens[i], tokens[i + 1], w);
        made.push_back(key_of(tokens[i], tokens[i + 1]));
      }
    }
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    for (const uint64_t key : made) offer(key, uses_[key].count);
  }

  // Takes back the counts of all neighbours of which at least one is about to be merged away.
  void remove_touched(const std::vector<int32_t>& tokens, Pair pair, int64_t count) {
    touched_.assign(tokens.size(), false);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (tokens[i] != pair.first || tokens[i + 1] != pair.second) continue;
      touched_[i] = touched_[i + 1] = true;
      ++i;
    }
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (touched_[i] || touched_[i + 1]) uses_[key_of(tokens[i], tokens[i + 1])].count -= count;
    }
  }

  std::vector<Word> words_;
  std::unordered_map<uint64_t, Use> uses_;
  std::priority_queue<Candidate> candidates_;
  std::vector<bool> touched_;
};

[[noreturn]] void refuse_state(const std::string& what) {
  throw base::CheckpointError("[byte_bpe] " + what +
                              ". Was the checkpoint written by another program or version?");
}

}  // namespace

BytePairEncoding::BytePairEncoding(std::vector<Pair> merges) : merges_(std::move(merges)) {
  bytes_of_.reserve(kBytes + merges_.size());
  for (int32_t byte = 0; byte < kBytes; ++byte) bytes_of_.emplace_back(1, static_cast<char>(byte));
  for (const Pair& pair : merges_) {
    token_of_.emplace(key_of(pair.first, pair.second), static_cast<int32_t>(bytes_of_.size()));
    bytes_of_.push_back(bytes_of_[static_cast<size_t>(pair.first)] +
                        bytes_of_[static_cast<size_t>(pair.second)]);
  }
}

BytePairEncoding BytePairEncoding::train(std::string_view text, int64_t vocab_size) {
  if (vocab_size < kBytes || vocab_size > kMaxVocabSize) {
    throw base::UsageError("[byte_bpe] the vocabulary is " + std::to_string(vocab_size) +
                           " tokens; 256 (the bytes alone) to " + std::to_string(kMaxVocabSize) +
                           " is accepted.");
  }
  return BytePairEncoding(Trainer(text).run(static_cast<size_t>(vocab_size - kBytes)));
}

BytePairEncoding BytePairEncoding::from_state_dict(const base::StateDict& state) {
  const std::string& kind = state.at("kind").to_string("'kind' of the tokenizer");
  if (kind != "byte_bpe") refuse_state("the tokenizer is '" + kind + "'; 'byte_bpe' is accepted");
  const int64_t version = state.at("version").to_int("'version' of the tokenizer");
  if (version != 1) {
    refuse_state("the tokenizer has version " + std::to_string(version) + "; 1 is accepted");
  }
  const at::Tensor stored = state.at("merges").to_tensor("'merges' of the tokenizer");
  if (!stored.defined() || !stored.device().is_cpu() || stored.scalar_type() != at::kLong ||
      stored.dim() != 2 || stored.size(1) != 2 || stored.size(0) > kMaxVocabSize - kBytes) {
    refuse_state("'merges' is no int64 tensor of shape [M, 2] with M up to 1048320");
  }
  const at::Tensor rows = stored.contiguous();
  const int64_t* row = rows.const_data_ptr<int64_t>();
  std::vector<Pair> merges;
  std::vector<size_t> length(kBytes, 1);  // of each token, in bytes
  for (int64_t i = 0; i < rows.size(0); ++i, row += 2) {
    const int64_t tokens = kBytes + i;
    if (row[0] < 0 || row[0] >= tokens || row[1] < 0 || row[1] >= tokens) {
      refuse_state("merge " + std::to_string(i) + " is (" + std::to_string(row[0]) + ", " +
                   std::to_string(row[1]) + "); tokens 0 to " + std::to_string(tokens - 1) +
                   " are accepted there");
    }
    length.push_back(length[static_cast<size_t>(row[0])] + length[static_cast<size_t>(row[1])]);
    if (length.back() > kMaxWordBytes) {
      refuse_state("merge " + std::to_string(i) + " makes a token longer than the " +
                   std::to_string(kMaxWordBytes) + " bytes of a word");
    }
    merges.emplace_back(static_cast<int32_t>(row[0]), static_cast<int32_t>(row[1]));
  }
  return BytePairEncoding(std::move(merges));
}

std::vector<int32_t> BytePairEncoding::encode(std::string_view text) const {
  struct Span {
    size_t begin = 0, size = 0;
  };
  std::unordered_map<std::string_view, Span> span_of;  // where a word's tokens stand already
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, word_length(text));
    text.remove_prefix(word.size());
    const auto [entry, is_new] = span_of.try_emplace(word);
    if (is_new) {
      std::vector<int32_t> made = as_bytes(word);
      merge_word(made);
      entry->second = {tokens.size(), made.size()};
      tokens.insert(tokens.end(), made.begin(), made.end());
    } else {
      const Span span = entry->second;
      for (size_t i = 0; i < span.size; ++i) tokens.push_back(int32_t{tokens[span.begin + i]});
    }
  }
  return tokens;
}

void BytePairEncoding::merge_word(std::vector<int32_t>& tokens) const {
  // The earliest merge first: what it makes can only take part in later ones.
  for (;;) {
    int32_t earliest = std::numeric_limits<int32_t>::max();
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = token_of_.find(key_of(tokens[i], tokens[i + 1]));
      if (found != token_of_.end()) earliest = std::min(earliest, found->second);
    }
    if (earliest == std::numeric_limits<int32_t>::max()) return;
    replace_pair(tokens, merges_[static_cast<size_t>(earliest - kBytes)], earliest);
  }
}

std::string BytePairEncoding::decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size()) {
      throw base::UsageError("[byte_bpe] there is no token " + std::to_string(token) + "; 0 to " +
                             std::to_string(vocab_size() - 1) + " is accepted.");
    }
    text += bytes_of_[static_cast<size_t>(token)];
  }
  return text;
}

base::StateDict BytePairEncoding::state_dict() const {
  const at::Tensor stored =
      at::empty({static_cast<int64_t>(merges_.size()), 2}, at::TensorOptions().dtype(at::kLong));
  int64_t* row = stored.mutable_data_ptr<int64_t>();
  for (const Pair& pair : merges_) {
    *row++ = pair.first;
    *row++ = pair.second;
  }
  base::StateDict state;
  state.set("kind", "byte_bpe");
  state.set("version", 1);
  state.set("merges", stored);
  return state;
}

}  // namespace torchamp::train
