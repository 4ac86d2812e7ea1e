// Offline runs of Weights & Biases: frames and messages as wandb writes them, and what a run leaves whatever ends it.
#include "metrics/wandb.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "metrics/protobuf_reader.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using test::Field;
using test::fields_of;
using test::Reader;

constexpr uint64_t kHistory = 2, kSummary = 3, kFiles = 6, kRun = 17, kExit = 18, kHeader = 21, kEnvironment = 26;

// The records of a file, frame by frame.
std::vector<std::string> wandb_records(const std::string& file) {
  constexpr size_t kBlock = 32768, kFrameHeader = 7;
  EXPECT_EQ(file.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  std::vector<std::string> records;
  std::string parts;
  Reader reader(file);
  size_t at = 7;
  reader.take(at);
  while (!reader.is_done()) {
    const size_t left = kBlock - at % kBlock;
    if (left < kFrameHeader) {
      EXPECT_EQ(reader.take(left), std::string(left, '\0'));
      at += left;
      continue;
    }
    const uint64_t crc = reader.fixed(4), size = reader.fixed(2), kind = reader.fixed(1);
    EXPECT_LE(size, left - kFrameHeader) << "a frame crosses the end of its block";
    const std::string checked = static_cast<char>(kind) + std::string(reader.take(size));
    EXPECT_EQ(crc, ::crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size())));
    at += kFrameHeader + size;
    EXPECT_EQ(parts.empty(), kind == 1 || kind == 2) << "a record begins inside another";
    parts += kind == 1 || kind == 2 ? " " + checked.substr(1) : checked.substr(1);
    if (kind == 2 || kind == 3) continue;
    records.push_back(parts.substr(1));
    parts.clear();
  }
  EXPECT_EQ(parts, "") << "the last record is not whole";
  return records;
}

struct WandbRecord {
  uint64_t number = 0, kind = 0;
  std::string message;
};

std::vector<WandbRecord> read_wandb(const fs::path& file) {
  std::vector<WandbRecord> records;
  for (const std::string& bytes : wandb_records(read_file(file))) {
    const std::vector<Field> fields = fields_of(bytes);
    EXPECT_EQ(fields.size(), 2u);
    records.push_back({fields.at(0).value, fields.at(1).number, std::string(fields.at(1).bytes)});
    EXPECT_EQ(records.back().number, records.size()) << "records are counted from 1";
  }
  return records;
}

std::vector<std::string> messages_of(const fs::path& file, uint64_t kind) {
  std::vector<std::string> messages;
  for (const WandbRecord& record : read_wandb(file)) {
    if (record.kind == kind) messages.push_back(record.message);
  }
  return messages;
}

std::string bytes_of(std::string_view message, uint64_t number) {
  for (const Field& field : fields_of(message)) {
    if (field.number == number) return std::string(field.bytes);
  }
  return "";
}

uint64_t number_of(std::string_view message, uint64_t number) {
  for (const Field& field : fields_of(message)) {
    if (field.number == number) return field.value;
  }
  return 0;
}

// Items of a history, a summary or a configuration: name and value in JSON.
std::map<std::string, std::string> items_of(std::string_view message) {
  std::map<std::string, std::string> items;
  for (const Field& field : fields_of(message)) {
    if (field.number != 1) continue;
    std::string name, value;
    for (const Field& part : fields_of(field.bytes)) {
      if (part.number == 1 || part.number == 2) name += (name.empty() ? "" : ".") + std::string(part.bytes);
      if (part.number == 16) value = part.bytes;
    }
    EXPECT_TRUE(items.emplace(name, value).second) << name << " is there twice";
  }
  return items;
}

class WandbRun : public testing::Test {
 protected:
  TrackedRun run() const {
    TrackedRun run;
    run.folder = folder_.path() / "wandb";
    run.group = "proj";
    run.name = "exp one";
    run.options = {{"lr", "0.001", true, false}, {"optimizer", "adam", false, true}};
    run.configuration = "lr: 0.001\n";
    run.command = {"megalith", "train", "--lr", "0.001"};
    run.commit = "abc";
    return run;
  }
  fs::path file_of(const WandbSink& sink) const { return sink.folder() / ("run-" + sink.id() + ".wandb"); }

  const test::TemporaryFolder folder_;
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
  LogOptions options_;
};

StepRecord wandb_step(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.consumed_samples = 8 * iteration;
  record.losses = {{"lm loss", 1.0 / static_cast<double>(iteration)}};
  return record;
}

TEST(WandbFile, FramesAreThoseOfWandb) {
  // From a file that wandb 0.31.0 wrote: its fifth record, at byte 562.
  const std::string theirs("\xe6\x1cP\xf2\x1a\0\1\x08\5\x32\x16\n\x14\n\x10requirements.txt\x18\1", 33);
  EXPECT_EQ(wandb_frames(wandb_numbered(wandb_files_record({"requirements.txt"}), 5), 562), theirs);
}

TEST(WandbFile, ARecordIsReadBackWhereverItLies) {
  // Ends at each distance from a block's end, and records of several blocks.
  for (const size_t first : {32730u, 32746u, 32747u, 32748u, 32749u, 32750u, 32751u, 32752u, 32753u, 32754u, 32755u}) {
    std::string file = wandb_file_header();
    std::vector<std::string> expected;
    for (const size_t size : {first, size_t{0}, size_t{1}, size_t{100'000}, size_t{5}}) {
      expected.emplace_back(size, static_cast<char>('a' + expected.size()));
      file += wandb_frames(expected.back(), static_cast<int64_t>(file.size()));
    }
    EXPECT_EQ(wandb_records(file), expected) << first;
  }
}

TEST(WandbFile, NumbersAreJsonsAndWandbsOwn) {
  EXPECT_EQ(wandb_number(0.1), "0.1");
  EXPECT_EQ(wandb_number(5), "5");
  EXPECT_EQ(wandb_number(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(wandb_number(std::nan("")), "NaN");
  EXPECT_EQ(wandb_number(-std::numeric_limits<double>::infinity()), "-Infinity");
}

TEST_F(WandbRun, SaysWhatItIsBeforeItsFirstStep) {
  const WandbSink sink(run(), options_, log_);
  EXPECT_TRUE(sink.folder().filename().string().starts_with("offline-run-2")) << sink.folder();
  EXPECT_TRUE(sink.folder().filename().string().ends_with("-" + sink.id()));
  EXPECT_EQ(fs::canonical(folder_.path() / "wandb" / "latest-run"), fs::canonical(sink.folder()));
  EXPECT_EQ(read_file(sink.folder() / "files" / "megalith.yaml"), "lr: 0.001\n");

  const std::vector<WandbRecord> records = read_wandb(file_of(sink));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].kind, kHeader);
  ASSERT_EQ(records[1].kind, kRun);
  EXPECT_EQ(bytes_of(records[1].message, 1), sink.id());
  EXPECT_EQ(bytes_of(records[1].message, 3), "proj");
  EXPECT_EQ(bytes_of(records[1].message, 8), "exp one");
  EXPECT_EQ(number_of(records[1].message, 18), 0u) << "resumed";
  EXPECT_GT(number_of(bytes_of(records[1].message, 17), 1), 1'700'000'000u) << "seconds since 1970";
  EXPECT_EQ(items_of(bytes_of(records[1].message, 4)),
            (std::map<std::string, std::string>{{"lr", "0.001"}, {"optimizer", "\"adam\""}}));
  ASSERT_EQ(records[2].kind, kEnvironment);
  EXPECT_EQ(bytes_of(records[2].message, 6), "megalith");
  EXPECT_EQ(bytes_of(records[2].message, 5), "train");
  EXPECT_EQ(bytes_of(bytes_of(records[2].message, 9), 2), "abc");
  EXPECT_EQ(records[3].kind, kFiles);
}

TEST_F(WandbRun, AnEvaluationJoinsTheRowOfItsStep) {
  WandbSink sink(run(), options_, log_);
  sink.on_step(wandb_step(1));
  sink.on_step(wandb_step(2));
  sink.on_validation({.iteration = 2, .when = "", .losses = {{"lm loss", 0.25}}});
  sink.on_generation({.iteration = 2, .prompt = "call ", .continuation = "me\n"});
  ASSERT_EQ(messages_of(file_of(sink), kHistory).size(), 1u) << "the step before is in the file";
  sink.on_step(wandb_step(3));
  sink.on_end();

  const std::vector<std::string> rows = messages_of(file_of(sink), kHistory);
  ASSERT_EQ(rows.size(), 3u);
  std::map<std::string, std::string> second = items_of(rows[1]);
  EXPECT_EQ(number_of(bytes_of(rows[1], 2), 1), 2u);
  EXPECT_EQ(second["_step"], "2");
  EXPECT_EQ(second["lm loss"], "0.5");
  EXPECT_EQ(second["lm loss validation"], "0.25");
  EXPECT_EQ(second["samples vs steps"], "16");
  EXPECT_EQ(second["sample"], R"("call me\n")");
  EXPECT_TRUE(second.contains("learning-rate") && second.contains("_timestamp") && second.contains("_runtime"));
  EXPECT_FALSE(items_of(rows[2]).contains("sample")) << "a row has only its own";

  const std::vector<std::string> summaries = messages_of(file_of(sink), kSummary);
  ASSERT_EQ(summaries.size(), 2u) << "after the first row, for a run that is killed, and at the end";
  std::map<std::string, std::string> last = items_of(summaries.back());
  EXPECT_EQ(last["lm loss validation"], "0.25");
  EXPECT_EQ(last["_step"], "3");
  EXPECT_TRUE(last.contains("_wandb.runtime"));
  EXPECT_EQ(read_wandb(file_of(sink)).back().kind, kExit);
  EXPECT_EQ(number_of(read_wandb(file_of(sink)).back().message, 1), 0u) << "exit code";
}

TEST_F(WandbRun, OneThatFailsEndsWithItsLastStepAndACode) {
  fs::path file;
  {
    WandbSink sink(run(), options_, log_);
    file = file_of(sink);
    StepRecord bad = wandb_step(1);
    bad.losses[0].second = std::nan("");
    sink.on_step(bad);
  }
  const std::vector<std::string> rows = messages_of(file, kHistory);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(items_of(rows[0])["lm loss"], "NaN");
  EXPECT_EQ(number_of(read_wandb(file).back().message, 1), 1u);
}

TEST_F(WandbRun, OneThatGoesOnHasItsIdAndAFolderOfItsOwn) {
  TrackedRun again = run();
  fs::path first;
  {
    const WandbSink sink(run(), options_, log_);
    again.id = sink.id();
    first = sink.folder();
  }
  again.resumed_after = 7;
  const WandbSink sink(again, options_, log_);
  EXPECT_EQ(sink.id(), again.id);
  EXPECT_NE(sink.folder(), first) << "in the same second";
  const std::string record = read_wandb(file_of(sink)).at(1).message;
  EXPECT_EQ(number_of(record, 14), 7u);
  EXPECT_EQ(number_of(record, 18), 1u);
  EXPECT_EQ(fs::canonical(folder_.path() / "wandb" / "latest-run"), fs::canonical(sink.folder()));
}

TEST_F(WandbRun, TheIntervalLeavesStepsOut) {
  options_.tensorboard_log_interval = 10;
  WandbSink sink(run(), options_, log_);
  for (int64_t i = 1; i <= 20; ++i) sink.on_step(wandb_step(i));
  sink.on_end();
  const std::vector<std::string> rows = messages_of(file_of(sink), kHistory);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(items_of(rows[0])["_step"], "10");
}

TEST_F(WandbRun, AFolderThatCannotBeWrittenIsAUserError) {
  TrackedRun blocked = run();
  blocked.folder = folder_.write("file", "mine") / "wandb";
  EXPECT_THROW(WandbSink(blocked, options_, log_), UserError);
}

}  // namespace
}  // namespace megalith
