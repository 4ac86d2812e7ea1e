// Joining, checking and measuring data sets.
#include "data/dataset_tools.h"

#include <cstring>

#include "data_fixture.h"

namespace megalith {
namespace {

using DatasetTools = DataTest;

TEST_F(DatasetTools, MergedDataSetsAreOneBehindTheOther) {
  const std::string a = write_counting("a", {5, 0, 3}), b = write_counting("b", {2});
  IndexedDatasetWriter writer(path("c"), TokenType::kUint16);
  writer.add_sequence(std::vector<int32_t>{1, 2});
  writer.add_sequence(std::vector<int32_t>{3});
  writer.end_document();
  writer.end_document();
  writer.finish();
  const MergeReport report = merge_data_sets({a, b + ".bin", path("c.idx")}, path("all"), log_);
  EXPECT_EQ(report.documents, 6);
  EXPECT_EQ(report.sequences, 6);
  EXPECT_EQ(report.tokens, 13);
  EXPECT_EQ(read_file(path("all.bin")), read_file(path("a.bin")) + read_file(path("b.bin")) + read_file(path("c.bin")));
  const IndexedDataset all(path("all"));
  std::vector<int64_t> begins;
  for (int64_t d = 0; d <= all.num_documents(); ++d) begins.push_back(all.document_begin(d));
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 1, 2, 3, 4, 6, 6}));
  EXPECT_TRUE(check_data_set(path("all"), std::nullopt, log_).faults.empty());

  EXPECT_EQ(message_of([&] { merge_data_sets({a, b}, a, log_); }), a + " is an input and the output");
  const std::string wide = write_counting("wide", {3}, 100'000);
  EXPECT_EQ(message_of([&] {
              merge_data_sets({a, wide}, path("x"), log_);
            }),
            a + " has tokens of 2 bytes (type 8), " + wide + " of 4 (type 4)");
  EXPECT_FALSE(std::filesystem::exists(path("x.bin")));
}

TEST_F(DatasetTools, CheckFindsWhatIsWrong) {
  const std::string d = write_counting("d", {5, 0, 3});
  const CheckReport good = check_data_set(d, 23, log_);
  EXPECT_TRUE(good.faults.empty());
  EXPECT_EQ(good.tokens, 8);
  EXPECT_EQ(good.largest_id, 22);
  EXPECT_EQ(good.smallest_id, 0);
  EXPECT_EQ(check_data_set(d, 22, log_).faults,
            std::vector<std::string>{d + ".bin, document 2: token 2 has the id 22, but the vocabulary has 22 ids"});
  write_file_atomic(d + ".bin", read_file(d + ".bin") + "xy");
  EXPECT_EQ(check_data_set(d, 23, log_).faults,
            std::vector<std::string>{d + ".bin has 2 bytes that belong to no sequence"});
  EXPECT_EQ(check_data_set(path("none"), 23, log_).faults[0],
            fmt::format("data set {0}: {0}.idx does not exist", path("none")));
  const std::string wide = write_counting("wide", {2}, 100'000);
  const int32_t ids[] = {7, -3};
  std::string bin(8, '\0');
  std::memcpy(bin.data(), ids, 8);
  write_file_atomic(wide + ".bin", bin);
  EXPECT_EQ(check_data_set(wide, std::nullopt, log_).faults,
            std::vector<std::string>{wide + ".bin, document 0: token 1 has the id -3"});
}

TEST_F(DatasetTools, HistogramCountsByPowersOfTwo) {
  const IndexedDataset data(write_counting("d", {1, 2, 3, 4, 5, 64, 64}));
  const LengthHistogram lengths = measure_lengths(data);
  EXPECT_EQ(lengths.counts, (std::vector<int64_t>{0, 1, 1, 2, 1, 0, 0, 2}));
  EXPECT_EQ(lengths.shortest, 1);
  EXPECT_EQ(lengths.longest, 64);
  const std::string picture = draw(lengths);
  EXPECT_EQ(std::count(picture.begin(), picture.end(), '\n'), 7);
  EXPECT_NE(picture.find("33 … 64"), std::string::npos) << picture;
  EXPECT_NE(picture.find(std::string(40, '#') + "\n"), std::string::npos) << picture;
}

}  // namespace
}  // namespace megalith
