// `megalith prepare`: order, contents, the report of empty and broken lines, and atomicity.
#include "data/prepare.h"

#include "data_fixture.h"

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
  EXPECT_EQ(message_of([&] { prepare_data(options({write("a.jsonl.gz", "x")}), *tokenizer_, log_); }),
            "the input " + path("a.jsonl.gz") + " is compressed, which is not supported");
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
}

}  // namespace
}  // namespace megalith
