// Instruction data as tokens, prepared once: {prefix}.bin and .idx in Megatron's format, {prefix}_mask.bin and .idx of
// the same shape with a byte for each token (1: it counts in the loss), and {prefix}.json with what was found. The
// .json comes last: where it is, all is. A sample is a document of one sequence; a pair of answers of two, the chosen
// one and the rejected one.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "data/indexed_dataset.h"
#include "kinds/text/sft_encoder.h"

namespace megalith {

struct SftReport {
  SftForm form = SftForm::kText;
  int64_t samples = 0, tokens = 0, counted = 0;  // of those that are learned from
  int64_t num_without_loss = 0;                  // samples in which nothing counts: they are left out
  int64_t num_bad = 0;                           // rows that skip_bad_rows left out
  std::vector<std::string> bad_rows;             // what is wrong with the first of them
  int64_t num_without_thoughts = 0;              // of SftSample
  int64_t longest = 0;                           // in tokens
  std::string longest_place;                     // its row
  std::string encoder;                           // SftEncoder::identity() of what made the tokens
  std::string tokenizer;                         // its name, for a person
};

// Takes samples one by one and says what is wrong with the set as a whole.
class SftTally {
 public:
  // Goes on from the report and the tokens outside the loss of another one.
  explicit SftTally(const SftOptions& options, SftReport report = {}, int64_t num_outside = 0)
      : trains_on_input_(options.train_on_input),
        most_bad_(options.skip_bad_rows.value_or(0)),
        num_outside_(num_outside),
        report_(std::move(report)) {}

  // True if there is something to learn in it. UserError for a row of another form than the rows before.
  bool add(const SftSample& sample, const SftLine& line);
  // Counts a row that cannot be used. false: skip_bad_rows allows no more of them.
  bool skip(const UserError& error);
  int64_t num_rows() const { return report_.samples + report_.num_without_loss + report_.num_bad; }
  const SftReport& report() const { return report_; }
  int64_t num_outside() const { return num_outside_; }  // tokens that do not count
  // UserError when there are no rows, when nothing counts, or when everything does although the rows have questions.
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

// Writes the files, which appear when all rows were read; a run that was stopped goes on where it was
// (prepare_state.h). UserError for rows and sets that cannot be learned from; old files are left then, and no new one.
SftReport prepare_sft(SftReader& reader, const SftEncoder& encoder, const SftOptions& options, int64_t vocab_size,
                      const std::string& prefix, Logger& log, double store_every_s = 5);

// True if a path names such files: "x", "x.bin" or "x.idx", with a report and a mask.
bool is_prepared_sft(const std::string& path);

// The report of such files. UserError unless they hold what the encoder would make of the rows.
SftReport check_prepared_sft(const std::string& prefix, const SftEncoder& encoder);

// The prepared files, opened.
class SftSet {
 public:
  // UserError when files are missing or do not belong together.
  explicit SftSet(const std::string& prefix);

  bool has_pairs() const { return report_.form == SftForm::kPairs; }
  int64_t sequences_per_sample() const { return has_pairs() ? 2 : 1; }
  int64_t num_samples() const { return tokens_.num_sequences() / sequences_per_sample(); }
  int64_t num_sequences() const { return tokens_.num_sequences(); }
  // In tokens: of a sample, whose sequences are sample * sequences_per_sample() and the next; and of a sequence.
  int64_t length(int64_t sample) const;
  int64_t sequence_length(int64_t sequence) const { return tokens_.sequence_length(sequence); }
  // Tokens [offset, offset + count) of a sequence, and their weights.
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens, uint8_t* weights) const;
  // A checksum of the sequences' lengths: what packs depend on.
  std::string lengths_identity() const;
  const SftReport& report() const { return report_; }
  const std::string& prefix() const { return prefix_; }

 private:
  std::string prefix_;
  IndexedDataset tokens_, mask_;
  SftReport report_;
};

// The report as text for a person, ending in a line break.
std::string describe(const SftReport& report);

}  // namespace megalith
