// `megalith prepare`: order, contents, the report of empty and broken lines, and atomicity.
#include "data/prepare.h"

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "data/ordered_map.h"
#include "data/prepared_outputs.h"
#include "data_fixture.h"
#include "kinds/text/sft_set.h"

namespace megalith {
namespace {

class PrepareTest : public DataTest {
 protected:
  PrepareOptions options(std::vector<std::string> input) {
    PrepareOptions options;
    options.input = std::move(input);
    options.output_prefix = path("out");
    options.workers = 3;
    return options;
  }
  std::string write(std::string_view name, std::string_view content) {
    write_file_atomic(path(name), content);
    return path(name);
  }
  static std::vector<std::string> documents(const std::string& prefix, const Tokenizer& tokenizer) {
    const IndexedDataset data(prefix);
    std::vector<std::string> texts;
    for (int64_t d = 0; d < data.num_documents(); ++d) {
      std::string text;
      for (int64_t i = data.document_begin(d); i < data.document_begin(d + 1); ++i) {
        std::vector<int64_t> tokens(static_cast<size_t>(data.sequence_length(i)));
        data.read(i, 0, data.sequence_length(i), tokens.data());
        text += tokenizer.decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
      }
      texts.push_back(text);
    }
    return texts;
  }
  using Texts = std::vector<std::string>;

  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
};

TEST_F(PrepareTest, DocumentsKeepOrderForAnyNumberOfWorkers) {
  std::string lines;
  Texts expected;
  for (int i = 0; i < 3000; ++i) {
    expected.push_back(fmt::format("document {} {}", i, std::string(static_cast<size_t>(i * 37 % 500), 'x')));
    lines += fmt::format("{{\"text\": \"{}\"}}\n", expected.back());
  }
  PrepareOptions one = options({write("a.jsonl", lines)});
  std::string reference_bin, reference_idx;
  one.overwrite = true;
  for (const int64_t workers : {1, 2, 7}) {
    one.workers = workers;
    const PrepareReport report = prepare_data(one, *tokenizer_, log_);
    EXPECT_EQ(report.documents, 3000);
    if (workers == 1) {
      EXPECT_EQ(documents(path("out_text_document"), *tokenizer_), expected);
      reference_bin = read_file(path("out_text_document.bin"));
      reference_idx = read_file(path("out_text_document.idx"));
    }
    EXPECT_TRUE(read_file(path("out_text_document.bin")) == reference_bin) << workers;
    EXPECT_TRUE(read_file(path("out_text_document.idx")) == reference_idx) << workers;
  }
}

TEST_F(PrepareTest, EodEndsEachDocumentThatIsNotEmpty) {
  PrepareOptions with_eod = options({write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"é\"}")});
  with_eod.append_eod = true;
  const PrepareReport report = prepare_data(with_eod, *tokenizer_, log_);
  const IndexedDataset data(path("out_text_document"));
  EXPECT_EQ(data.num_documents(), 3);
  EXPECT_EQ(data.num_sequences(), 2);
  int64_t tokens[3] = {};
  data.read(0, 0, 3, tokens);
  EXPECT_EQ(tokens[2], 256);
  EXPECT_EQ(report.outputs[0].tokens, 6);
  EXPECT_EQ(report.num_empty_documents, 1);
  EXPECT_EQ(report.empty_documents[0].line, 2);
}

TEST_F(PrepareTest, EmptyAndBrokenLinesAreReportedByNumber) {
  const std::string file = write("a.jsonl",
                                 "{\"text\": \"one\"}\r\n\n  \t\n{\"text\": 3}\n{\"body\": \"x\"}\n{\"text\": \"two\n"
                                 "[1]\n{\"text\": \"bad \xff byte\"}\n");
  const PrepareReport report = prepare_data(options({file}), *tokenizer_, log_);
  EXPECT_EQ(documents(path("out_text_document"), *tokenizer_), (Texts{"one", "bad \xEF\xBF\xBD byte"}));
  ASSERT_EQ(report.num_empty_lines, 2);
  EXPECT_EQ(report.empty_lines[0].line, 2);
  EXPECT_EQ(report.empty_lines[1].line, 3);
  ASSERT_EQ(report.num_broken_lines, 4);
  EXPECT_EQ(report.broken_lines[0].line, 4);
  EXPECT_EQ(report.broken_lines[0].reason, "the line: text is 3, expected a text in quotes");
  EXPECT_EQ(report.broken_lines[1].reason, "the line: \"text\" is missing");
  EXPECT_TRUE(report.broken_lines[2].reason.starts_with("not valid JSON at byte ")) << report.broken_lines[2].reason;
  EXPECT_EQ(report.broken_lines[3].line, 7);
  const std::string text = describe(report);
  EXPECT_NE(text.find("skipped 2 empty lines: " + file + ":2, " + file + ":3"), std::string::npos) << text;
  EXPECT_NE(text.find("skipped 4 broken lines"), std::string::npos) << text;
}

TEST_F(PrepareTest, SeveralKeysAndInputsInOrder) {
  PrepareOptions two =
      options({write("b.jsonl", "{\"q\": \"1\", \"a\": \"x\"}"), write("a.jsonl", "{\"q\": \"2\", \"a\": \"\"}\n")});
  two.json_keys = {"q", "a"};
  const PrepareReport report = prepare_data(two, *tokenizer_, log_);
  EXPECT_EQ(documents(path("out_q_document"), *tokenizer_), (Texts{"1", "2"}));
  EXPECT_EQ(documents(path("out_a_document"), *tokenizer_), (Texts{"x", ""}));
  EXPECT_EQ(report.outputs.size(), 2u);
  EXPECT_EQ(report.num_empty_documents, 0);
}

TEST_F(PrepareTest, PlainTextIsOneDocumentAFileAndPatternsAreSorted) {
  write("2.txt", "second\n\nparagraph\n");
  write("1.txt", "first");
  const PrepareReport report = prepare_data(options({path("*.txt")}), *tokenizer_, log_);
  EXPECT_EQ(report.documents, 2);
  EXPECT_EQ(documents(path("out_text_document"), *tokenizer_), (Texts{"first", "second\n\nparagraph\n"}));
}

TEST_F(PrepareTest, LinesLongerThanAChunkStayWhole) {
  const std::string longest(700'000, 'y');
  const std::string file = write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"" + longest + "\"}\n{\"text\": \"b\"}");
  prepare_data(options({file}), *tokenizer_, log_);
  EXPECT_TRUE(documents(path("out_text_document"), *tokenizer_) == (Texts{"a", longest, "b"}));
}

TEST_F(PrepareTest, ProgressLineEveryLogInterval) {
  PrepareOptions often = options({write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n")});
  often.log_interval = 2;
  prepare_data(often, *tokenizer_, log_);
  EXPECT_TRUE(logged_.starts_with("2 documents; prepare: ")) << logged_;
}

TEST_F(PrepareTest, BadInputIsExplainedAndLeavesNoOutput) {
  EXPECT_EQ(message_of([&] { prepare_data(options({}), *tokenizer_, log_); }), "no input is given");
  EXPECT_EQ(message_of([&] { prepare_data(options({path("no.jsonl")}), *tokenizer_, log_); }),
            "cannot open " + path("no.jsonl") + ": No such file or directory");
  EXPECT_EQ(message_of([&] { prepare_data(options({path("*.none")}), *tokenizer_, log_); }),
            "no file matches the input " + path("*.none"));
  EXPECT_EQ(message_of([&] { prepare_data(options({write("a.jsonl.bz2", "BZh91AY")}), *tokenizer_, log_); }),
            "the input " + path("a.jsonl.bz2") + " is compressed with bzip2, which is not read here");
  EXPECT_EQ(message_of([&] {
              prepare_data(options({"-", "-"}), *tokenizer_, log_);
            }),
            "standard input is named more than once");
  const std::string broken = write("b.jsonl", "not json\n");
  EXPECT_TRUE(
      message_of([&] {
        prepare_data(options({broken}), *tokenizer_, log_);
      }).starts_with("no document could be read from " + broken + " (line 1 of " + broken + ": not valid JSON"));
  PrepareOptions keys = options({write("c.txt", "x")});
  keys.json_keys = {"a", "b"};
  EXPECT_EQ(message_of([&] { prepare_data(keys, *tokenizer_, log_); }),
            "json_keys has 2 keys, but " + path("c.txt") + " is plain text");
  // A tokenizer that cannot read the text stops the whole run, from whichever thread.
  EXPECT_THROW(prepare_data(options({path("c.txt")}), *make_null_tokenizer(5), log_), UserError);
  EXPECT_FALSE(std::filesystem::exists(path("out_text_document.bin")));
  EXPECT_FALSE(std::filesystem::exists(path("out_text_document.idx")));
  EXPECT_FALSE(std::filesystem::exists(path("out.prepare")));
}

TEST_F(PrepareTest, SentencesBecomeSequencesAndListsAreSentences) {
  PrepareOptions split = options({write("a.jsonl",
                                        "{\"text\": \"One. Two!\\n\\nThree\"}\n{\"text\": \"  \"}\n"
                                        "{\"text\": [\"Dr. A\", \"\", \"b. C.\"]}\n")});
  split.split_sentences = split.append_eod = true;
  const PrepareReport report = prepare_data(split, *tokenizer_, log_);
  const IndexedDataset data(path("out_text_sentence"));
  ASSERT_EQ(data.num_documents(), 3);
  EXPECT_EQ(data.document_begin(1), 3);
  EXPECT_EQ(data.document_begin(2), 3);
  EXPECT_EQ(data.num_sequences(), 6);
  EXPECT_EQ(data.sequence_length(0), 4);
  EXPECT_EQ(data.sequence_length(2), 6);  // "Three" and the end of the document
  EXPECT_EQ(report.outputs[0].sequences, 6);
  EXPECT_EQ(report.num_empty_documents, 1);
  EXPECT_NE(describe(report).find("3 documents of 6 sequences"), std::string::npos) << describe(report);
  // Without splitting a list is still what its author split.
  split.split_sentences = false;
  prepare_data(split, *tokenizer_, log_);
  EXPECT_EQ(IndexedDataset(path("out_text_document")).num_sequences(), 4);
  split.keep_newlines = true;
  EXPECT_EQ(message_of([&] { prepare_data(split, *tokenizer_, log_); }),
            "keep_newlines is given without split_sentences");
}

TEST_F(PrepareTest, LinesThatAreTooLongAreBrokenOnes) {
  const std::string huge = fmt::format("{{\"text\": \"{}\"}}\n", std::string(3'000'000, 'z'));
  PrepareOptions small = options({write("a.jsonl", "{\"text\": \"a\"}\n" + huge + "{\"text\": \"b\"}\n" + huge)});
  small.max_line_memory = 3'000'000;
  const PrepareReport report = prepare_data(small, *tokenizer_, log_);
  EXPECT_EQ(documents(path("out_text_document"), *tokenizer_), (Texts{"a", "b"}));
  ASSERT_EQ(report.num_broken_lines, 2);
  EXPECT_EQ(report.broken_lines[0].line, 2);
  EXPECT_EQ(report.broken_lines[1].line, 4);
  EXPECT_EQ(report.broken_lines[0].reason,
            "the line is longer than 977 KiB, so it would take more than 2.86 MiB of memory");
  // Only the general parser reads names with escapes, and it takes more.
  small.input = {write("b.jsonl", fmt::format("{{\"text\": \"a\", \"\\u0062\": \"{}\"}}\n{{\"text\": \"b\"}}\n",
                                              std::string(200'000, 'z')))};
  small.overwrite = true;
  const PrepareReport general = prepare_data(small, *tokenizer_, log_);
  EXPECT_EQ(documents(path("out_text_document"), *tokenizer_), (Texts{"b"}));
  ASSERT_EQ(general.num_broken_lines, 1);
  EXPECT_NE(general.broken_lines[0].reason.find("would take more than 2.86 MiB of memory"), std::string::npos);
  // An invalid byte becomes three.
  small.input = {
      write("i.jsonl", fmt::format("{{\"text\": \"{}\"}}\n{{\"text\": \"b\"}}\n", std::string(800'000, '\xff')))};
  const PrepareReport invalid = prepare_data(small, *tokenizer_, log_);
  EXPECT_EQ(documents(path("out_text_document"), *tokenizer_), (Texts{"b"}));
  ASSERT_EQ(invalid.num_broken_lines, 1);
  EXPECT_EQ(invalid.broken_lines[0].reason,
            "the line of 781 KiB has so many invalid bytes that it would take more than 2.86 MiB of memory");
  const std::string text = write("c.txt", std::string(1'500'000, 'c'));
  small.input = {text};
  small.overwrite = true;
  EXPECT_EQ(message_of([&] { prepare_data(small, *tokenizer_, log_); }),
            text + " is longer than 977 KiB, and a plain-text file is one document");
}

// Long lines are read, unescaped, encoded and written in parts of their own, which must not be seen in what they give.
TEST_F(PrepareTest, LongLinesGiveTheTokensOfTheirTexts) {
  std::string text;
  for (int i = 0; text.size() < 10'000'000; ++i) text += fmt::format("{} \"é\" 漢字 \\\t🦙. A sentence\n", i);
  const std::string cut_character = std::string(2'000'000, 'y') + "\xE6\xBC";
  const auto line = [](const Json& value) { return dump_json(Json{{"text", value}, {"n", 1e5}}) + "\n"; };
  const std::string many = "{\"text\": \"short\"}\n";
  std::string damaged = line(Json("x"));
  damaged.insert(damaged.rfind('x'), cut_character);
  PrepareOptions job = options(
      {write("a.jsonl", many + line(Json(text)) + many + damaged + line(Json::array({"one", text, "tw\"o"})) + many)});
  job.append_eod = true;
  const PrepareReport report = prepare_data(job, *tokenizer_, log_);
  EXPECT_EQ(report.num_broken_lines, 0);
  const std::string end = "<|endoftext|>";
  EXPECT_TRUE(documents(path("out_text_document"), *tokenizer_) ==
              (Texts{"short" + end, text + end, "short" + end, std::string(2'000'000, 'y') + "\xEF\xBF\xBDx" + end,
                     "one" + text + "tw\"o" + end, "short" + end}));
  EXPECT_EQ(IndexedDataset(path("out_text_document")).num_sequences(), 8);
}

TEST_F(PrepareTest, ALongLineThatFailsLateLeavesNothing) {
  const auto numbers = make_null_tokenizer(1000);
  std::string text = "1";
  for (int i = 0; i < 9'000'000; ++i) text += " 7";
  PrepareOptions job = options(
      {write("a.jsonl", "{\"text\": \"1 2\"}\n{\"a\": \"3\", \"text\": \"" + text + " x\"}\n{\"text\": \"5\"}\n")});
  const PrepareReport report = prepare_data(job, *numbers, log_);
  EXPECT_EQ(report.num_broken_lines, 1);
  EXPECT_EQ(documents(path("out_text_document"), *numbers), (Texts{"1 2", "5"}));
  EXPECT_FALSE(std::filesystem::exists(path("out.prepare")));
}

TEST_F(PrepareTest, DataOfAnotherTokenizerAreTold) {
  const std::string output = path("out_text_document");
  prepare_data(options({write("a.jsonl", "{\"text\": \"one\"}\n")}), *tokenizer_, log_);
  std::map<int64_t, std::string> digests, other_digests;
  EXPECT_FALSE(find_other_tokenizer(output, *tokenizer_, digests));
  EXPECT_FALSE(find_other_tokenizer(path("megatrons_own"), *tokenizer_, digests));
  const auto other = make_null_tokenizer(256);  // as many ids
  const std::optional<UserError> found = find_other_tokenizer(output, *other, other_digests);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->message(), output +
                                  " was prepared with another tokenizer (ByteTokenizer of 257 ids) than this run has "
                                  "(NullTokenizer(256) of 257 ids)");
  PrepareOptions by_other = options({write("b.jsonl", "{\"text\": \"1 2\"}\n")});
  by_other.output_prefix = path("other");
  prepare_data(by_other, *other, log_);
  const std::optional<UserError> mixed = find_mixed_tokenizers({output, path("none"), path("other_text_document.bin")});
  ASSERT_TRUE(mixed);
  EXPECT_EQ(mixed->message(),
            fmt::format("{} and {} were prepared with different tokenizers (ByteTokenizer of 257 ids, "
                        "and NullTokenizer(256) of 257 ids)",
                        output, path("other_text_document")));
  EXPECT_FALSE(find_mixed_tokenizers({output, output}));
  // A record of an earlier version knows the size only, and other files of the names nothing.
  Json record = load_json(output + ".prepared");
  record["job"].erase("tokenizer_digest");
  write_file_atomic(output + ".prepared", dump_json(record));
  EXPECT_FALSE(find_other_tokenizer(output, *other, other_digests));
  EXPECT_TRUE(find_other_tokenizer(output, *make_null_tokenizer(300), digests));
  EXPECT_TRUE(prepare_data(options({path("a.jsonl")}), *tokenizer_, log_).was_finished);
  record["bin_bytes"] = 1;
  write_file_atomic(output + ".prepared", dump_json(record));
  EXPECT_FALSE(find_other_tokenizer(output, *make_null_tokenizer(300), digests));
}

// Fails when it meets a certain text, as a full disk or a signal would in the middle of a run.
class FailingTokenizer : public Tokenizer {
 public:
  FailingTokenizer(const Tokenizer& inner, std::string bad) : inner_(inner), bad_(std::move(bad)) {}
  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    if (text == bad_) throw InternalError("stopped here");
    return inner_.encode(text, add_special);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    return inner_.decode(ids, skip_special);
  }
  bool is_special(int32_t id) const override { return inner_.is_special(id); }
  int64_t vocab_size() const override { return inner_.vocab_size(); }
  const SpecialIds& special_ids() const override { return inner_.special_ids(); }
  std::string name() const override { return inner_.name(); }

 private:
  const Tokenizer& inner_;
  std::string bad_;
};

class PrepareResume : public PrepareTest {
 protected:
  // Chunks are 256 KiB: eleven of them in two files, with an empty and a broken line early on.
  PrepareOptions big_job() {
    std::string lines[2] = {"\n{\"text\": 3}\n", ""};
    for (int i = 0; i < 3000; ++i) {
      lines[i / 2000] += fmt::format("{{\"text\": \"document {} {}\"}}\n", i, std::string(900, 'x'));
    }
    PrepareOptions job = options({write("a.jsonl", lines[0]), write("b.jsonl", lines[1])});
    job.store_every_s = 0;
    job.append_eod = true;
    return job;
  }
  static std::string document(int i) { return fmt::format("document {} {}", i, std::string(900, 'x')); }
  std::pair<std::string, std::string> result() {
    return {read_file(path("out_text_document.bin")), read_file(path("out_text_document.idx"))};
  }
};

TEST_F(PrepareTest, FinishedOutputsOfTheSameInputsAreKept) {
  PrepareOptions job = options({write("a.jsonl", "{\"text\": \"one\", \"title\": \"t\"}\n")});
  job.json_keys = {"text", "title"};
  EXPECT_FALSE(prepare_data(job, *tokenizer_, log_).was_finished);
  const auto written = std::filesystem::last_write_time(path("out_text_document.bin"));
  job.workers = 1;  // not part of what the bytes depend on
  const PrepareReport again = prepare_data(job, *tokenizer_, log_);
  EXPECT_TRUE(again.was_finished);
  EXPECT_EQ(std::filesystem::last_write_time(path("out_text_document.bin")), written);
  ASSERT_EQ(again.outputs.size(), 2u);
  EXPECT_EQ(again.outputs[0].tokens, 3);
  EXPECT_EQ(again.outputs[1].prefix, path("out_title_document"));
  EXPECT_NE(describe(again).find("finished before, from the same inputs and options"), std::string::npos);
  EXPECT_NE(describe(again).find("out_text_document.bin: 3 tokens in 1 documents"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("out.prepare")));
  // With one of the two gone the job is done again: nothing that stays is lost by it.
  remove_tree(path("out_title_document.idx"));
  EXPECT_FALSE(prepare_data(job, *tokenizer_, log_).was_finished);
  EXPECT_EQ(documents(path("out_title_document"), *tokenizer_), Texts{"t"});
  job.overwrite = true;
  EXPECT_FALSE(prepare_data(job, *tokenizer_, log_).was_finished);
}

TEST_F(PrepareTest, FinishedOutputsOfOtherInputsAreReplacedOnlyWithOverwrite) {
  const std::string output = path("out_text_document");
  PrepareOptions first =
      options({write("a.jsonl", "{\"text\": \"one\"}\n"), write("b.jsonl", "{\"text\": \"two\"}\n")});
  prepare_data(first, *tokenizer_, log_);
  PrepareOptions second = options({write("c.jsonl", "{\"text\": \"three\"}\n")});
  const auto refused = [&](const PrepareOptions& job) {
    const std::string message = message_of([&] { prepare_data(job, *tokenizer_, log_); });
    EXPECT_EQ(documents(output, *tokenizer_), (Texts{"one", "two"}));
    EXPECT_FALSE(std::filesystem::exists(path("out.prepare")));
    return message;
  };
  EXPECT_EQ(refused(second), output +
                                 ".idx is there already, made from other inputs, or from these before they changed (" +
                                 path("a.jsonl") + " and 1 more)");
  PrepareOptions with_eod = first;
  with_eod.append_eod = true;
  EXPECT_EQ(refused(with_eod), output + ".idx is there already, made from the same inputs with other options");
  // Other files under the names, or a damaged record: nothing says what they are.
  const std::string unknown = output + ".idx is there already, and nothing says from what it was made";
  const std::string record = read_file(output + ".prepared");
  for (const std::string& damaged :
       {std::string("{"), std::string("{\"job\": 1}"), record.substr(0, record.size() / 2)}) {
    write_file_atomic(output + ".prepared", damaged);
    EXPECT_EQ(refused(first), unknown);
  }
  Json of_others = parse_json(record, "record");
  of_others["bin_bytes"] = 1;
  write_file_atomic(output + ".prepared", dump_json(of_others));
  EXPECT_EQ(refused(first), unknown);
  remove_tree(output + ".prepared");
  EXPECT_EQ(refused(first), unknown);
  // Both outputs of a job are named in one message.
  PrepareOptions two = options({write("d.jsonl", "{\"text\": \"a\", \"title\": \"b\"}\n")});
  two.json_keys = {"text", "title"};
  write_file_atomic(path("out_title_document.idx"), std::string_view("of others"));
  const std::string both = refused(two);
  EXPECT_NE(both.find("out_text_document.idx is there already"), std::string::npos) << both;
  EXPECT_NE(both.find("out_title_document.idx is there already"), std::string::npos) << both;

  second.overwrite = true;
  prepare_data(second, *tokenizer_, log_);
  EXPECT_EQ(documents(output, *tokenizer_), Texts{"three"});
  second.overwrite = false;
  EXPECT_TRUE(prepare_data(second, *tokenizer_, log_).was_finished);
  // A .bin of others has no .idx either.
  remove_tree(output + ".idx");
  write_file_atomic(output + ".bin", std::string_view("of others"));
  const std::string taken = message_of([&] { prepare_data(first, *tokenizer_, log_); });
  EXPECT_NE(taken.find("out_text_document.bin: a file is there"), std::string::npos) << taken;
  EXPECT_EQ(read_file(output + ".bin"), "of others");
  remove_tree(output + ".bin");
  prepare_data(first, *tokenizer_, log_);
  // A .bin without its .idx, as a killed run leaves it, is no output.
  remove_tree(output + ".idx");
  EXPECT_FALSE(prepare_data(first, *tokenizer_, log_).was_finished);
  EXPECT_EQ(documents(output, *tokenizer_), (Texts{"one", "two"}));
}

TEST_F(PrepareResume, ARunThatReplacesGoesOnWithoutBeingAskedAgain) {
  PrepareOptions job = big_job();
  write_file_atomic(path("out_text_document.bin"), std::string_view("of others"));
  write_file_atomic(path("out_text_document.idx"), std::string_view("of others"));
  job.overwrite = true;
  EXPECT_THROW(prepare_data(job, FailingTokenizer(*tokenizer_, document(1500)), log_), InternalError);
  job.overwrite = false;
  EXPECT_GT(prepare_data(job, *tokenizer_, log_).resumed_at, 0);
  EXPECT_TRUE(prepare_data(job, *tokenizer_, log_).was_finished);
}

TEST_F(PrepareResume, AStoppedRunGoesOnAndGivesTheSameBytes) {
  PrepareOptions job = big_job();
  const PrepareReport whole = prepare_data(job, *tokenizer_, log_);
  const auto expected = result();
  for (const int stop : {700, 1999, 2000, 2999}) {
    remove_tree(path("out_text_document.bin"));
    remove_tree(path("out_text_document.idx"));
    const FailingTokenizer failing(*tokenizer_, document(stop));
    EXPECT_THROW(prepare_data(job, failing, log_), InternalError);
    EXPECT_FALSE(std::filesystem::exists(path("out_text_document.bin")));
    EXPECT_TRUE(std::filesystem::exists(path("out.prepare"))) << stop;
    job.workers = 1;  // not part of what the bytes depend on
    const PrepareReport rest = prepare_data(job, *tokenizer_, log_);
    EXPECT_GT(rest.resumed_at, 0) << stop;
    EXPECT_LE(rest.resumed_at, stop);
    EXPECT_NE(describe(rest).find(fmt::format(", {} of them in an earlier run\n", rest.resumed_at)), std::string::npos);
    EXPECT_TRUE(result() == expected) << stop;
    EXPECT_EQ(rest.documents, whole.documents);
    EXPECT_EQ(rest.input_bytes, whole.input_bytes);
    EXPECT_EQ(rest.num_empty_lines, 1);
    ASSERT_EQ(rest.num_broken_lines, 1);
    EXPECT_EQ(rest.broken_lines[0].line, 2);
    EXPECT_FALSE(std::filesystem::exists(path("out.prepare")));
  }
}

TEST_F(PrepareResume, AFolderWithFilesOfOthersIsLeftAlone) {
  std::filesystem::create_directory(path("out.prepare"));
  write("out.prepare/notes.txt", "mine");
  EXPECT_EQ(message_of([&] { prepare_data(big_job(), *tokenizer_, log_); }),
            path("out.prepare") + " is where prepare keeps unfinished work, and it holds notes.txt");
  EXPECT_EQ(read_file(path("out.prepare/notes.txt")), "mine");
}

TEST_F(PrepareResume, AnotherJobOrDamagedPartsBeginAnew) {
  PrepareOptions job = big_job();
  const FailingTokenizer failing(*tokenizer_, document(1500));
  EXPECT_THROW(prepare_data(job, failing, log_), InternalError);
  job.append_eod = false;
  EXPECT_EQ(prepare_data(job, *tokenizer_, log_).resumed_at, 0);
  EXPECT_NE(logged_.find("other inputs or options: beginning anew"), std::string::npos) << logged_;
  const auto expected = result();

  job.overwrite = true;
  EXPECT_THROW(prepare_data(job, failing, log_), InternalError);
  std::filesystem::resize_file(path("out.prepare/part0.bin"), 10);
  EXPECT_EQ(prepare_data(job, *tokenizer_, log_).resumed_at, 0);
  EXPECT_TRUE(result() == expected);

  EXPECT_THROW(prepare_data(job, failing, log_), InternalError);
  write_file_atomic(path("out.prepare/state.json"), std::string_view("{\"job\": {}"));
  EXPECT_EQ(prepare_data(job, *tokenizer_, log_).resumed_at, 0);
  EXPECT_TRUE(result() == expected);
}

TEST_F(PrepareResume, NumbersThatCannotBeBeginAnew) {
  PrepareOptions job = big_job();
  job.overwrite = true;
  const FailingTokenizer failing(*tokenizer_, document(1500));
  const std::string state_file = path("out.prepare/state.json");
  std::vector<std::pair<std::string, Json>> damages;
  for (const char* key : {"input", "offset", "line", "taken", "input_bytes", "documents", "num_empty_lines",
                          "num_empty_documents", "num_broken_lines"}) {
    damages.emplace_back(key, 1e308);
  }
  damages.emplace_back("documents", -1);
  damages.emplace_back("input_bytes", INT64_MAX);  // counting on from it would overflow
  damages.emplace_back("checksum", 1e308);
  damages.emplace_back("elapsed_s", "long");
  damages.emplace_back("writers", Json::array({Json::array({1e308, 1, 1})}));
  damages.emplace_back("broken_lines", Json::array({Json::array({"a", 1e308, "b"})}));
  for (const auto& [key, value] : damages) {
    EXPECT_THROW(prepare_data(job, failing, log_), InternalError);
    Json stored = load_json(state_file);
    stored["state"][key] = value;
    write_file_atomic(state_file, dump_json(stored));
    logged_.clear();
    EXPECT_EQ(prepare_data(job, *tokenizer_, log_).resumed_at, 0) << key;
    EXPECT_NE(logged_.find("state.json: state: " + key), std::string::npos) << logged_;
    EXPECT_NE(logged_.find("beginning anew"), std::string::npos) << logged_;
  }
}

TEST_F(PrepareResume, InstructionsGoOnAndGiveTheSameBytes) {
  std::string rows;
  for (int i = 0; i < 60; ++i)
    rows += fmt::format("{{\"prompt\": \"question {0}\", \"completion\": \" answer {0}\"}}\n", i);
  const std::string file = write("rows.jsonl", rows);
  const auto prepare = [&](const Tokenizer& tokenizer, const std::string& prefix) {
    const SftOptions sft;
    const SftEncoder encoder(tokenizer, "", sft);
    SftReader reader({file}, std::nullopt, std::nullopt);
    return prepare_sft(reader, encoder, sft, tokenizer.vocab_size(), prefix, log_, /*store_every_s=*/0);
  };
  const SftReport whole = prepare(*tokenizer_, path("whole"));
  EXPECT_THROW(prepare(FailingTokenizer(*tokenizer_, "question 40 answer 40"), path("parts")), InternalError);
  EXPECT_TRUE(std::filesystem::exists(path("parts.prepare/state.json")));
  EXPECT_FALSE(std::filesystem::exists(path("parts.json")));
  const SftReport rest = prepare(*tokenizer_, path("parts"));
  EXPECT_NE(logged_.find("going on after row"), std::string::npos) << logged_;
  EXPECT_EQ(rest.longest_place, whole.longest_place);
  for (const char* ending : {".bin", ".idx", "_mask.bin", "_mask.idx", ".json"}) {
    EXPECT_TRUE(read_file(path("parts") + ending) == read_file(path("whole") + ending)) << ending;
  }
  EXPECT_FALSE(std::filesystem::exists(path("parts.prepare")));
}

TEST(OrderedMap, ResultsComeInOrderAndFailuresWithTheirJob) {
  for (const int64_t num_threads : {1, 3}) {
    std::vector<int> taken;
    OrderedMap<int> map(
        num_threads, /*most_bytes=*/100,
        [](int& job) {
          if (job == 150) throw UserError("job 150");
          job *= 2;
        },
        [&](int job) { taken.push_back(job); });
    EXPECT_THROW(
        {
          for (int i = 0; i < 200; ++i) map.give(i, i % 7 == 0 ? 1000 : 1);
          map.finish();
        },
        UserError);
    ASSERT_EQ(taken.size(), 150u);
    for (int i = 0; i < 150; ++i) EXPECT_EQ(taken[static_cast<size_t>(i)], 2 * i);
  }
}

}  // namespace
}  // namespace megalith
