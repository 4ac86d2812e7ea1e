#include "kinds/text/text_batch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "models/encoder_decoder.h"

namespace megalith {
namespace {

// Log-probabilities of a prompt are computed in pieces: the logits of all its positions would not fit.
constexpr int64_t kPromptPiece = 128;
// Growth of the shared cache, in slots.
constexpr int64_t kCacheStep = 256;
// Prompts of one length are read together: as long as products of the CPU give a row the same bits in any company, and
// as many tokens as bound the memory.
constexpr int64_t kFewestTogether = 64, kMostTogether = 1024;
// Recomputing a shorter common prefix is faster than copying it.
constexpr int64_t kLeastReused = 8;

int64_t round_up(int64_t value, int64_t step) { return div_up(value, step) * step; }

int64_t common_beginning(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

at::Tensor& part(KvCache::Slot& slot, int which) { return which == 0 ? slot.k : slot.v; }
const at::Tensor& part(const KvCache::Slot& slot, int which) { return which == 0 ? slot.k : slot.v; }

// logits (v) on the CPU, wide
void add_likelihoods(GeneratedToken& token, const at::Tensor& logits, int64_t num_others) {
  const at::Tensor logprobs = at::log_softmax(logits.to(at::kFloat), 0);
  token.logprob = logprobs[token.id].item<double>();
  if (num_others == 0) return;
  const auto [values, ids] = logprobs.topk(std::min<int64_t>(num_others, logprobs.size(0)));
  for (int64_t i = 0; i < ids.size(0); ++i) {
    token.likeliest.push_back({ids[i].item<int64_t>(), values[i].item<double>()});
  }
}

// logits (1, v) float32
at::Tensor changed_logits(const at::Tensor& logits, const GenerationRequest& request,
                          const std::vector<int64_t>& new_ids) {
  const at::Tensor changed = logits.clone();
  const auto add = [&](const std::map<int64_t, double>& changes) {
    if (changes.empty()) return;
    std::vector<int64_t> ids;
    std::vector<double> values;
    for (const auto& [id, change] : changes) {
      ids.push_back(id);
      values.push_back(change);
    }
    changed.index_add_(1, at::tensor(ids, at::kLong).to(changed.device()),
                       at::tensor(values, at::kFloat).unsqueeze(0).to(changed.device()));
  };
  if (request.frequency_penalty != 0 || request.presence_penalty != 0) {
    std::map<int64_t, double> penalties;
    for (const int64_t id : new_ids) {
      penalties.try_emplace(id, -request.presence_penalty).first->second -= request.frequency_penalty;
    }
    add(penalties);
  }
  add(request.logit_bias);
  return changed;
}

}  // namespace

TextBatch::TextBatch(PipelinedModel& model, const Limits& limits, at::Device device)
    : model_(model),
      limits_(limits),
      device_(device),
      // An attention chunk begins where its row does, and a decoder's memory belongs to one row.
      can_share_(limits.most_rows > 1 && !model.config().has_encoder() && model.config().attention_chunk_size == 0) {}

// positions (b, s) int64; starts (b) int64 of a shared cache, else undefined. Returns (b, s or 1, v).
at::Tensor TextBatch::forward(const std::vector<std::vector<int64_t>>& rows, const at::Tensor& positions,
                              KvCache& cache, const at::Tensor& starts, const std::vector<int64_t>& encoder_ids,
                              HeadOutput head) {
  const auto ids_of = [&](const std::vector<std::vector<int64_t>>& lists) {
    std::vector<at::Tensor> tensors;
    for (const auto& list : lists) tensors.push_back(at::tensor(at::ArrayRef<int64_t>(list), at::kLong));
    return at::stack(tensors).to(device_);
  };
  ModelInput input;
  input.tokens = ids_of(rows);
  input.context.b = input.tokens.size(0);
  input.context.s = input.tokens.size(1);
  input.context.position_ids = positions.to(device_);
  input.context.is_training = false;
  input.context.cache = &cache;
  if (starts.defined()) {
    const int64_t end = cache.length + input.context.s;
    const at::Tensor is_before = at::arange(end, at::kLong).unsqueeze(0).lt(starts.unsqueeze(1));
    input.context.mask.key_documents = is_before.to(at::kInt).to(device_);
    input.context.mask.query_documents = at::zeros({input.context.b, input.context.s}, at::kInt).to(device_);
  }
  if (!encoder_ids.empty()) {
    input.context.encoder_s = std::ssize(encoder_ids);
    input.more.set(input::kEncoderTokens.name, ids_of(std::vector(rows.size(), encoder_ids)));
  }
  at::Tensor logits = model_.forward(input, head).logits;
  cache.length += input.context.s;
  return logits;
}

// The next `count` tokens of one sequence through its own cache; (1, count or 1, v).
at::Tensor TextBatch::read_alone(Sequence& sequence, int64_t count, HeadOutput head) {
  const auto begin = sequence.tokens.begin() + sequence.num_cached;
  const std::vector<std::vector<int64_t>> rows(static_cast<size_t>(limits_.row_multiple), {begin, begin + count});
  const at::Tensor positions = at::arange(sequence.num_cached, sequence.num_cached + count, at::kLong)
                                   .expand({limits_.row_multiple, count});
  const bool has_encoder = model_.config().has_encoder();
  const at::Tensor logits = forward(rows, positions, sequence.own, {},
                                    has_encoder ? sequence.request.prompt_ids : std::vector<int64_t>{}, head);
  sequence.num_cached += count;
  return logits.narrow(0, 0, 1);
}

void TextBatch::reuse_past(Sequence& sequence) {
  // The last token is always read, for its logits.
  const auto reusable = [&](const std::vector<int64_t>& tokens) {
    const int64_t count = std::min(common_beginning(sequence.tokens, tokens), std::ssize(sequence.tokens) - 1);
    // A convolution's state is that of the last token.
    return model_.config().num_convolutions() == 0 || count == std::ssize(tokens) ? count : 0;
  };
  const auto best = std::max_element(past_.begin(), past_.end(), [&](const Past& a, const Past& b) {
    return reusable(a.tokens) < reusable(b.tokens);
  });
  if (best == past_.end()) return;
  const int64_t count = reusable(best->tokens);
  if (count < kLeastReused) return;
  for (KvCache::Slot& slot : best->slots) {
    KvCache::Slot& copy = sequence.own.slots.emplace_back();
    if (slot.state.defined()) copy.state = slot.state.expand({limits_.row_multiple, -1, -1}).clone();
    for (int which : {0, 1}) {
      const at::Tensor& stored = part(slot, which);
      if (!stored.defined()) continue;
      part(copy, which) = at::empty({limits_.row_multiple, sequence.own.capacity, stored.size(2), stored.size(3)},
                                    stored.options());
      part(copy, which).narrow(1, 0, count).copy_(stored.narrow(1, 0, count));
    }
  }
  sequence.own.length = sequence.num_cached = count;
  num_reused_ += count;
  past_.splice(past_.begin(), past_, best);
}

std::vector<GeneratedToken> TextBatch::read_prompt(Sequence& sequence) {
  std::vector<GeneratedToken> likelihoods;
  const GenerationRequest& request = sequence.request;
  if (!request.has_prompt_logprobs) {
    const int64_t count = std::ssize(sequence.tokens) - sequence.num_cached;
    sequence.logits = read_alone(sequence, count, HeadOutput::kLastLogits).select(1, 0);
    return likelihoods;
  }
  const int64_t total = std::ssize(sequence.tokens);
  while (sequence.num_cached < total) {
    const int64_t first = sequence.num_cached, count = std::min(kPromptPiece, total - first);
    const at::Tensor logits = read_alone(sequence, count, HeadOutput::kLogits)[0].to(at::kCPU, at::kFloat);
    for (int64_t i = 0; i < count && first + i + 1 < total; ++i) {
      GeneratedToken& token = likelihoods.emplace_back();
      token.key = sequence.key;
      token.id = sequence.tokens[static_cast<size_t>(first + i + 1)];
      add_likelihoods(token, logits[i], request.num_logprobs.value_or(0));
    }
    sequence.logits = logits.narrow(0, count - 1, 1);
  }
  return likelihoods;
}

std::vector<GeneratedToken> TextBatch::add(int64_t key, const GenerationRequest& request) {
  at::NoGradGuard no_grad;
  MEGALITH_CHECK(has_room(), "{} sequences in a batch of {}", sequences_.size(), limits_.most_rows);
  check_generation(model_.config(), request, "max_new_tokens");
  Sequence sequence{.key = key, .request = request};
  sequence.tokens = request.prompt_ids;
  if (model_.config().has_encoder()) sequence.tokens = {model_.config().bos_token_id.value_or(0)};
  sequence.own.capacity = std::ssize(sequence.tokens) + (can_share_ ? 0 : request.max_new_tokens);
  if (!request.has_prompt_logprobs && !model_.config().has_encoder()) reuse_past(sequence);
  sequence.waits = may_wait(sequence);
  std::vector<GeneratedToken> likelihoods;
  if (!sequence.waits) likelihoods = read_prompt(sequence);
  sequences_.push_back(std::move(sequence));
  if (request.max_new_tokens == 0) remove(key);
  return likelihoods;
}

bool TextBatch::may_wait(const Sequence& sequence) const {
  const GenerationRequest& request = sequence.request;
  return can_share_ && limits_.row_multiple == 1 && sequence.num_cached == 0 && !request.has_prompt_logprobs &&
         request.max_new_tokens > 0 && std::ssize(sequence.tokens) >= kFewestTogether;
}

void TextBatch::read_waiting() {
  std::map<size_t, std::vector<Sequence*>> by_length;
  for (Sequence& sequence : sequences_) {
    if (sequence.waits) by_length[sequence.tokens.size()].push_back(&sequence);
  }
  for (const auto& [length, group] : by_length) {
    const size_t most = std::max<size_t>(1, kMostTogether / length);
    for (size_t first = 0; first < group.size(); first += most) {
      read_prompts(std::span(group).subspan(first, std::min(most, group.size() - first)));
    }
  }
}

// All have one length.
void TextBatch::read_prompts(std::span<Sequence* const> sequences) {
  std::vector<std::vector<int64_t>> rows;
  for (const Sequence* sequence : sequences) rows.push_back(sequence->tokens);
  const int64_t count = std::ssize(rows.front());
  KvCache cache;
  cache.capacity = count;
  const at::Tensor logits = forward(rows, at::arange(count, at::kLong).expand({std::ssize(rows), count}), cache, {}, {},
                                    HeadOutput::kLastLogits);
  for (size_t row = 0; row < sequences.size(); ++row) {
    Sequence& sequence = *sequences[row];
    sequence.waits = false;
    sequence.num_cached = count;
    sequence.logits = logits[static_cast<int64_t>(row)];
    sequence.own.length = count;
    for (const KvCache::Slot& slot : cache.slots) {
      const auto own = [&](const at::Tensor& x) {
        return x.defined() ? x.narrow(0, static_cast<int64_t>(row), 1) : x;
      };
      sequence.own.slots.push_back({own(slot.k), own(slot.v), own(slot.state)});
    }
  }
}

at::Tensor TextBatch::state_of(const Sequence& sequence, size_t layer) const {
  const at::Tensor& state = cache_of(sequence).slots.at(layer).state;
  return state.defined() ? state.narrow(0, sequence.row, 1) : at::Tensor();
}

at::Tensor TextBatch::cached(const Sequence& sequence, size_t layer, int which) const {
  const at::Tensor& stored = part(cache_of(sequence).slots.at(layer), which);
  if (!stored.defined()) return {};
  return stored.narrow(0, sequence.row, 1).narrow(1, sequence.start, sequence.num_cached);
}

// Keys and values end at the last filled slot of the target.
void TextBatch::copy_to_row(KvCache& target, int64_t row, const Sequence& sequence) const {
  const int64_t start = target.length - sequence.num_cached;
  for (size_t layer = 0; layer < target.slots.size(); ++layer) {
    if (const at::Tensor state = state_of(sequence, layer); state.defined()) {
      at::Tensor& states = target.slots[layer].state;
      if (!states.defined()) states = at::zeros({std::ssize(rows_), state.size(1), state.size(2)}, state.options());
      states.narrow(0, row, 1).copy_(state);
    }
    for (int which : {0, 1}) {
      const at::Tensor source = cached(sequence, layer, which);
      if (!source.defined()) continue;
      at::Tensor& stored = part(target.slots[layer], which);
      if (!stored.defined()) {
        stored = at::zeros({std::ssize(rows_), target.capacity, source.size(2), source.size(3)}, source.options());
      }
      const at::Tensor slots = stored.narrow(0, row, 1);
      slots.narrow(1, 0, start).zero_();  // masked, but a NaN of the row's last sequence would pass the mask
      slots.narrow(1, start, sequence.num_cached).copy_(source);
    }
  }
}

void TextBatch::take_row(Sequence& sequence, int64_t row) {
  sequence.is_shared = true;
  sequence.row = row;
  sequence.start = shared_.length - sequence.num_cached;
  sequence.own = {};
  rows_[static_cast<size_t>(row)] = &sequence;
}

void TextBatch::arrange(const std::vector<Sequence*>& sequences) {
  KvCache fresh;
  for (const Sequence* sequence : sequences) fresh.length = std::max(fresh.length, sequence->num_cached);
  fresh.capacity = round_up(fresh.length + 1, kCacheStep) + kCacheStep;
  fresh.slots.resize(cache_of(*sequences.front()).slots.size());
  rows_.assign(static_cast<size_t>(round_up(std::ssize(sequences), limits_.row_multiple)), nullptr);
  for (size_t row = 0; row < sequences.size(); ++row) copy_to_row(fresh, static_cast<int64_t>(row), *sequences[row]);
  shared_ = std::move(fresh);
  for (size_t row = 0; row < sequences.size(); ++row) take_row(*sequences[row], static_cast<int64_t>(row));
}

void TextBatch::place(const std::vector<Sequence*>& sequences) {
  std::vector<Sequence*> joining;
  int64_t longest = 0;
  for (Sequence* sequence : sequences) {
    if (!sequence->is_shared) joining.push_back(sequence);
    longest = std::max(longest, sequence->num_cached);
  }
  const int64_t num_free = std::count(rows_.begin(), rows_.end(), nullptr);
  const bool fits = shared_.length < shared_.capacity && longest <= shared_.length && std::ssize(joining) <= num_free;
  // Free rows and slots are computed with, too.
  const int64_t needed = round_up(std::ssize(sequences), limits_.row_multiple) * longest;
  if (!fits || std::ssize(rows_) * shared_.length > 2 * needed) return arrange(sequences);
  for (Sequence* sequence : joining) {
    const int64_t row = std::find(rows_.begin(), rows_.end(), nullptr) - rows_.begin();
    copy_to_row(shared_, row, *sequence);
    take_row(*sequence, row);
  }
}

// Reads each one's last token, which its cache lacks.
void TextBatch::read_together(const std::vector<Sequence*>& sequences) {
  place(sequences);
  std::vector<std::vector<int64_t>> tokens;
  std::vector<int64_t> positions, starts;
  for (const Sequence* sequence : rows_) {  // a free row reads a token of no text
    tokens.push_back({sequence != nullptr ? sequence->tokens.back() : 0});
    positions.push_back(sequence != nullptr ? sequence->num_cached : 0);
    starts.push_back(sequence != nullptr ? sequence->start : shared_.length);
  }
  const at::Tensor logits = forward(tokens, at::tensor(positions, at::kLong).unsqueeze(1), shared_,
                                    at::tensor(starts, at::kLong), {}, HeadOutput::kLastLogits);
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] == nullptr) continue;
    rows_[row]->logits = logits[static_cast<int64_t>(row)];
    ++rows_[row]->num_cached;
  }
}

// Greedy ones in one pass.
std::vector<int64_t> TextBatch::choose_ids() const {
  std::vector<int64_t> ids(sequences_.size());
  std::vector<size_t> greedy;
  std::vector<at::Tensor> rows;
  size_t place = 0;
  for (const Sequence& sequence : sequences_) {
    const GenerationRequest& request = sequence.request;
    if (request.sampling.temperature == 0 && !request.changes_logits()) {
      greedy.push_back(place);
      rows.push_back(sequence.logits.to(device_));
    } else {
      const at::Tensor logits = sequence.logits.to(at::kFloat);
      const at::Tensor changed = request.changes_logits() ? changed_logits(logits, request, sequence.new_ids) : logits;
      ids[place] = sample_tokens(changed, request.sampling, std::ssize(sequence.new_ids)).item<int64_t>();
    }
    ++place;
  }
  if (greedy.empty()) return ids;
  const at::Tensor chosen = at::cat(rows).argmax(-1).to(at::kCPU);
  for (size_t i = 0; i < greedy.size(); ++i) ids[greedy[i]] = chosen.const_data_ptr<int64_t>()[i];
  return ids;
}

std::vector<GeneratedToken> TextBatch::step() {
  at::NoGradGuard no_grad;
  read_waiting();
  std::vector<Sequence*> unread;
  for (Sequence& sequence : sequences_) {
    if (!sequence.logits.defined()) unread.push_back(&sequence);
  }
  if (can_share_ && !unread.empty()) {
    read_together(unread);
  } else {
    for (Sequence* sequence : unread) {
      sequence->logits = read_alone(*sequence, 1, HeadOutput::kLastLogits).select(1, 0);
    }
  }
  const std::vector<int64_t> ids = choose_ids();
  std::vector<GeneratedToken> tokens;
  for (Sequence& sequence : sequences_) {
    const GenerationRequest& request = sequence.request;
    GeneratedToken& token = tokens.emplace_back();
    token.key = sequence.key;
    token.id = ids[tokens.size() - 1];
    if (request.num_logprobs) {
      add_likelihoods(token, sequence.logits[0].to(at::kCPU, at::kFloat), *request.num_logprobs);
    }
    token.is_stop = std::ranges::find(request.stop_ids, token.id) != request.stop_ids.end();
    sequence.new_ids.push_back(token.id);
    sequence.tokens.push_back(token.id);
    token.is_last = token.is_stop || std::ssize(sequence.new_ids) == request.max_new_tokens;
    sequence.logits = at::Tensor();
  }
  for (const GeneratedToken& token : tokens) {
    if (token.is_last) remove(token.key);
  }
  return tokens;
}

void TextBatch::keep_past(const Sequence& sequence) {
  if (sequence.waits || sequence.num_cached > limits_.most_past_tokens || model_.config().has_encoder()) return;
  Past past{.tokens = {sequence.tokens.begin(), sequence.tokens.begin() + sequence.num_cached}, .slots = {}};
  past.slots.resize(cache_of(sequence).slots.size());
  for (size_t layer = 0; layer < past.slots.size(); ++layer) {
    if (const at::Tensor state = state_of(sequence, layer); state.defined()) past.slots[layer].state = state.clone();
    for (int which : {0, 1}) {
      const at::Tensor source = cached(sequence, layer, which);
      if (source.defined()) part(past.slots[layer], which) = source.clone();
    }
  }
  // A prefix of the new one would never be chosen again.
  past_.remove_if([&](const Past& old) { return common_beginning(old.tokens, past.tokens) == std::ssize(old.tokens); });
  past_.push_front(std::move(past));
  int64_t total = 0;
  past_.remove_if([&](const Past& old) { return (total += std::ssize(old.tokens)) > limits_.most_past_tokens; });
}

void TextBatch::remove(int64_t key) {
  const auto found =
      std::find_if(sequences_.begin(), sequences_.end(), [&](const Sequence& sequence) { return sequence.key == key; });
  if (found == sequences_.end()) return;
  keep_past(*found);
  if (found->is_shared) rows_[static_cast<size_t>(found->row)] = nullptr;
  sequences_.erase(found);
  if (sequences_.empty()) {
    shared_ = {};
    rows_.clear();
  }
}

}  // namespace megalith
