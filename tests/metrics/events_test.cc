// Events of a run in all of its outputs: spikes, the actions they caused, and faults.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "metrics/json_console.h"
#include "metrics/jsonl.h"
#include "metrics/protobuf_reader.h"
#include "metrics/run_page.h"
#include "metrics/tensorboard.h"

namespace megalith {
namespace {

std::vector<EventRecord> events_of_a_run() {
  return {{.iteration = 20,
           .kind = "loss_spike",
           .text = "lm loss 9.5 of iteration 20 jumps above 4.25 (samples 76 to 79 of the run): the step was skipped",
           .begin_sample = 76,
           .end_sample = 80},
          {.iteration = 31,
           .kind = "rollback",
           .text = "lm loss nan of iteration 31 is not finite: the weights are those of iteration 24 again",
           .begin_sample = 96,
           .end_sample = 124},
          {.iteration = 40,
           .kind = "large_gradient",
           .text = "the gradient's norm 12.5 is above 10",
           .begin_sample = 156,
           .end_sample = 160},
          {.iteration = 44,
           .kind = "step_fault",
           .text = "check_determinism at iteration 44: rank 1 (host a<b>) changed in memory: the weight wte.weight",
           .begin_sample = 172,
           .end_sample = 176}};
}

class RunEvents : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void expect_event(const Json& line, const EventRecord& event) {
    EXPECT_EQ(line.at("kind"), "event");
    EXPECT_EQ(line.at("event"), event.kind);
    EXPECT_EQ(line.at("iteration"), event.iteration);
    EXPECT_EQ(line.at("text"), event.text);
    EXPECT_EQ(line.at("samples"), Json({event.begin_sample, event.end_sample}));
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "run_events_test";
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
};

TEST_F(RunEvents, AreLinesOfTheMetricsFile) {
  const std::vector<EventRecord> events = events_of_a_run();
  {
    JsonlSink sink(folder_ / "metrics.jsonl", log_, "one");
    for (const EventRecord& event : events) sink.on_event(event);
  }
  const std::string text = read_file(folder_ / "metrics.jsonl");
  size_t from = 0;
  for (const EventRecord& event : events) {
    const size_t end = text.find('\n', from);
    ASSERT_NE(end, std::string::npos);
    const Json line = parse_json(text.substr(from, end - from), "line");
    expect_event(line, event);
    EXPECT_EQ(line.at("run_id"), "one");
    from = end + 1;
  }
  EXPECT_EQ(from, text.size());
}

// Whatever the interval of steps is.
TEST_F(RunEvents, AreLinesOfTheOutputForPrograms) {
  std::vector<std::string> lines;
  JsonConsole sink(100, [&](std::string_view line) { lines.emplace_back(line); });
  const std::vector<EventRecord> events = events_of_a_run();
  for (const EventRecord& event : events) sink.on_event(event);
  ASSERT_EQ(lines.size(), events.size());
  for (size_t i = 0; i < events.size(); ++i) expect_event(parse_json(lines[i], "line"), events[i]);
}

// The texts of an event file: step, tag and what is said.
struct EventText {
  int64_t step = 0;
  std::string tag, text;
};

std::vector<EventText> texts_of(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::vector<EventText> texts;
  for (test::Reader reader(bytes); !reader.is_done();) {
    const uint64_t length = test::Reader(reader.take(8)).fixed(8);
    reader.take(4);
    EventText found;
    for (const test::Field& field : test::fields_of(reader.take(length))) {
      if (field.number == 2) found.step = static_cast<int64_t>(field.value);
      if (field.number != 5) continue;
      for (const test::Field& value : test::fields_of(field.bytes)) {
        for (const test::Field& part : test::fields_of(value.bytes)) {
          if (part.number == 1) found.tag = part.bytes;
          if (part.number != 8) continue;
          for (const test::Field& tensor : test::fields_of(part.bytes)) {
            if (tensor.number == 8) found.text = tensor.bytes;
          }
        }
      }
    }
    reader.take(4);
    if (!found.tag.empty()) texts.push_back(found);
  }
  return texts;
}

TEST_F(RunEvents, AreTextsOfTensorBoardByTheirKind) {
  LogOptions options;
  options.tensorboard_dir = folder_ / "events";
  TensorboardSink sink(options, log_);
  const std::vector<EventRecord> events = events_of_a_run();
  for (const EventRecord& event : events) sink.on_event(event);
  const std::vector<EventText> texts = texts_of(sink.path());
  ASSERT_EQ(texts.size(), events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(texts[i].step, events[i].iteration);
    EXPECT_EQ(texts[i].tag, events[i].kind + "/text_summary");
    EXPECT_EQ(texts[i].text, "    " + events[i].text) << "indented: Markdown changes nothing of it";
  }
}

// A run that a fault ends has no last page but this.
TEST_F(RunEvents, StandInThePageWhateverEndsTheRun) {
  const std::vector<EventRecord> events = events_of_a_run();
  RunPageSettings settings;
  settings.path = folder_ / "run.html";
  settings.title = "a run";
  settings.clock = [] { return 0.0; };
  {
    RunPageSink sink(settings, log_);
    for (const EventRecord& event : events) sink.on_event(event);
    EXPECT_EQ(read_file(settings.path).find("<h2>Events</h2>"), std::string::npos) << "written a moment ago";
  }
  const std::string page = read_file(settings.path);
  size_t from = page.find("<h2>Events</h2>");
  ASSERT_NE(from, std::string::npos);
  for (auto event = events.rbegin(); event != events.rend(); ++event) {  // the latest first
    from = page.find("<td>" + std::to_string(event->iteration) + "</td>", from);
    ASSERT_NE(from, std::string::npos) << event->kind;
  }
  EXPECT_NE(page.find("rank 1 (host a&lt;b&gt;) changed in memory"), std::string::npos);
  EXPECT_EQ(page.find("host a<b>"), std::string::npos);
}

TEST_F(RunEvents, OfAnEarlierPartOfTheRunStayInThePage) {
  RunPageSettings settings;
  settings.path = folder_ / "run.html";
  settings.title = "a run";
  {
    RunPageSink sink(settings, log_);
    for (const EventRecord& event : events_of_a_run()) {
      StepRecord step;
      step.iteration = event.iteration;
      step.losses = {{"lm loss", 2.0}};
      sink.on_step(step);
      sink.on_event(event);
    }
    sink.on_end();
  }
  settings.resumed_after = 35;  // later steps are done again
  RunPageSink sink(settings, log_);
  const std::string page = sink.render();
  EXPECT_NE(page.find("jumps above 4.25"), std::string::npos);
  EXPECT_NE(page.find("those of iteration 24 again"), std::string::npos);
  EXPECT_EQ(page.find("above 10"), std::string::npos);
}

}  // namespace
}  // namespace megalith
