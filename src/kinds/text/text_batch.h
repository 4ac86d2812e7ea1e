// Sequences that a model continues together, one token each per step: they join at any step and leave when they end
// (continuous batching; Yu et al. 2022, "Orca"). Prefixes shared with earlier prompts are not computed again.
//
// All rows of the shared KV cache end at the same slot. A shorter row begins at a later slot; the slots before it are
// another document to the attention mask. Queries and keys of a row are thus as far apart as they are by themselves,
// and windows need no change. A sequence that joins takes the row of one that left, so the others stay where they are.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "kinds/text/generation.h"
#include "nn/forward.h"

namespace megalith {

struct TokenLikelihood {
  int64_t id = 0;
  double logprob = 0;  // natural logarithm, before temperature and penalties
};

struct GeneratedToken {
  int64_t key = 0;  // of the sequence
  int64_t id = 0;
  std::optional<double> logprob;           // if num_logprobs is set
  std::vector<TokenLikelihood> likeliest;  // num_logprobs, best first
  bool is_stop = false;                    // one of stop_ids
  bool is_last = false;                    // the sequence has left: a stop, or max_new_tokens
};

class TextBatch {
 public:
  struct Limits {
    int64_t most_rows = 1;
    int64_t row_multiple = 1;       // generation_row_multiple()
    int64_t most_past_tokens = 0;   // of ended sequences, whose keys and values are kept for later prompts
  };

  // The model must outlive it.
  TextBatch(PipelinedModel& model, const Limits& limits, at::Device device);

  const ModelConfig& config() const { return model_.config(); }
  bool has_room() const { return std::ssize(sequences_) < limits_.most_rows; }
  bool is_empty() const { return sequences_.empty(); }

  // Adds a sequence; has_room() must hold. Returns the likelihood of each prompt token but the first, if asked for.
  // key: unique among the current sequences. Throws as check_generation(). The prompt is read here, or, if others of
  // its length may come, by the next step.
  std::vector<GeneratedToken> add(int64_t key, const GenerationRequest& request);
  // The next token of every sequence, in the order in which they joined.
  std::vector<GeneratedToken> step();
  // Ends a sequence early; nothing if it has left already.
  void remove(int64_t key);

  int64_t num_prompt_tokens_reused() const { return num_reused_; }  // since construction

 private:
  struct Sequence {
    int64_t key;
    GenerationRequest request;
    std::vector<int64_t> tokens;    // the prompt and its continuation
    int64_t num_cached = 0;         // of tokens, in the cache
    std::vector<int64_t> new_ids;
    at::Tensor logits;              // (1, v) of the next token; undefined: the last token has not been read
    bool waits = false;             // its prompt, for the next step
    KvCache own;                    // before it joins the shared cache, or for as long as it stays by itself
    bool is_shared = false;
    int64_t row = 0, start = 0;     // of its cache; start: the slot of its first token
  };
  struct Past {
    std::vector<int64_t> tokens;
    std::vector<KvCache::Slot> slots;  // (1, tokens, g, d), states (1, n, c)
  };

  at::Tensor forward(const std::vector<std::vector<int64_t>>& rows, const at::Tensor& positions, KvCache& cache,
                     const at::Tensor& starts, const std::vector<int64_t>& encoder_ids, HeadOutput head);
  at::Tensor read_alone(Sequence& sequence, int64_t count, HeadOutput head);
  void read_together(const std::vector<Sequence*>& sequences);
  bool may_wait(const Sequence& sequence) const;
  void read_waiting();
  void read_prompts(std::span<Sequence* const> sequences);
  void reuse_past(Sequence& sequence);
  std::vector<GeneratedToken> read_prompt(Sequence& sequence);
  // Gives each sequence a row of the shared cache, with room for a token.
  void place(const std::vector<Sequence*>& sequences);
  void arrange(const std::vector<Sequence*>& sequences);  // the same in a new cache, without free rows and slots
  void take_row(Sequence& sequence, int64_t row);
  void copy_to_row(KvCache& target, int64_t row, const Sequence& sequence) const;
  const KvCache& cache_of(const Sequence& sequence) const { return sequence.is_shared ? shared_ : sequence.own; }
  // (1, num_cached, g, d), a view of its cache; undefined for a layer without.
  at::Tensor cached(const Sequence& sequence, size_t layer, int which) const;
  at::Tensor state_of(const Sequence& sequence, size_t layer) const;  // (1, n, c), a view; undefined likewise
  void keep_past(const Sequence& sequence);
  // Chooses the next token of each.
  std::vector<int64_t> choose_ids() const;

  PipelinedModel& model_;
  Limits limits_;
  at::Device device_;
  bool can_share_;  // the cache
  std::list<Sequence> sequences_;
  KvCache shared_;
  std::vector<Sequence*> rows_;  // of the shared cache; null: free
  std::list<Past> past_;         // the latest first
  int64_t num_reused_ = 0;
};

}  // namespace megalith
