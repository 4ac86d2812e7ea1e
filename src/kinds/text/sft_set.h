// Instruction data as tokens, prepared once: {prefix}.bin and .idx in Megatron's format, {prefix}_mask.bin and .idx of
// the same shape with a byte per token (1: counts in the loss; 2: so does that of a bad answer), and the report
// {prefix}.json, written last: if it exists, the set is complete. A sample is a document of one sequence; a pair of
// answers has two, chosen and rejected. A rated answer is stored as one, and read as two: itself, and its question with
// the answer of the sample before it (KTO's mismatched pair; the first sample takes the last one's).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "data/indexed_dataset.h"
#include "kinds/text/sft_encoder.h"

namespace megalith {

struct SftReport {
  SftForm form = SftForm::kText;
  int64_t samples = 0, tokens = 0, counted = 0;  // of those learned from
  int64_t num_without_loss = 0;                  // texts without a counted token: left out
  int64_t num_bad = 0;                           // skipped by skip_bad_rows
  std::vector<std::string> bad_rows;             // errors of the first of them
  int64_t num_without_thoughts = 0, num_without_end = 0;  // of SftSample, as the next
  std::map<std::string, int64_t> num_unread;
  int64_t longest = 0;                           // in tokens
  std::string longest_place;                     // its row
  std::string encoder;                           // SftEncoder::identity()
  std::string tokenizer;                         // a name for humans
};

// Counts samples, and finds errors of the whole set.
class SftTally {
 public:
  // Continues another tally, given its report and num_outside().
  explicit SftTally(const SftOptions& options, SftReport report = {}, int64_t num_outside = 0)
      : trains_on_input_(options.train_on_input),
        most_bad_(options.skip_bad_rows.value_or(0)),
        num_outside_(num_outside),
        report_(std::move(report)) {}

  // True if there is something to learn in it. UserError for a row of another form than the rows before, and for one
  // of nothing to learn that is no text.
  bool add(const SftSample& sample, const SftLine& line);
  // Counts an unusable row. false: more than skip_bad_rows allows.
  bool skip(const UserError& error);
  int64_t num_rows() const { return report_.samples + report_.num_without_loss + report_.num_bad; }
  const SftReport& report() const { return report_; }
  int64_t num_outside() const { return num_outside_; }  // tokens that do not count
  // UserError without rows, if nothing counts, or if everything does although the rows have questions.
  void check() const;

 private:
  bool trains_on_input_;
  int64_t most_bad_, num_outside_;
  SftReport report_;
};

// Rows, encoded by several threads, added to the tally in their order. on_sample gets those that can be used, on the
// caller's thread; its errors are not the row's. UserErrors with the first of what is wrong in all files, but for the
// rows that the tally skips.
void encode_sft_rows(SftReader& reader, const SftEncoder& encoder, SftTally& tally,
                     const std::function<void(const SftSample&, const SftLine&, bool is_learned)>& on_sample);

// Writes the files, which appear once all rows were read; resumes an interrupted run (prepare_state.h). UserError for
// rows and sets that cannot be learned from: old files stay, and no new ones appear.
SftReport prepare_sft(SftReader& reader, const SftEncoder& encoder, const SftOptions& options, int64_t vocab_size,
                      const std::string& prefix, Logger& log, double store_every_s = 5);

// True if a path names such files: "x", "x.bin" or "x.idx", with a report and a mask.
bool is_prepared_sft(const std::string& path);

// The report of such files. UserError unless they hold this encoder's tokens.
SftReport check_prepared_sft(const std::string& prefix, const SftEncoder& encoder);

// The prepared files, opened.
class SftSet {
 public:
  // UserError if files are missing or inconsistent.
  explicit SftSet(const std::string& prefix);

  bool is_rated() const { return report_.form == SftForm::kRated; }
  bool has_pairs() const { return report_.form == SftForm::kPairs || is_rated(); }
  int64_t sequences_per_sample() const { return has_pairs() ? 2 : 1; }
  int64_t num_samples() const { return num_sequences() / sequences_per_sample(); }
  int64_t num_sequences() const { return is_rated() ? 2 * tokens_.num_sequences() : tokens_.num_sequences(); }
  bool is_bad(int64_t sample) const;  // of rated answers
  // In tokens: of a sample, whose sequences are sample * sequences_per_sample() and the next; and of a sequence.
  int64_t length(int64_t sample) const;
  int64_t sequence_length(int64_t sequence) const;
  int64_t longest() const;  // length of the longest sample
  // Tokens [offset, offset + count) of a sequence, and their weights.
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens, uint8_t* weights) const;
  // Checksum of the lengths, on which packs depend.
  std::string lengths_identity() const;
  const SftReport& report() const { return report_; }
  const std::string& prefix() const { return prefix_; }

 private:
  void read_stored(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens, uint8_t* weights) const;
  int64_t sample_before(int64_t sample) const { return sample > 0 ? sample - 1 : num_samples() - 1; }

  std::string prefix_;
  IndexedDataset tokens_, mask_;
  SftReport report_;
  std::vector<int64_t> question_lengths_;  // of rated answers
};

// A note on rows that sft_deduplicate left out.
std::string repeated_rows_text(int64_t num_repeated);

// Readable text, ending in a line break.
std::string describe(const SftReport& report);

}  // namespace megalith
