// Messages to ranks whose terms differ: a pure function, for any number of ranks.
#include "launch/meeting_terms.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

std::vector<Term> usual_terms() {
  return {{TermKind::kProgram, "commit", "0123456789ab"},
          {TermKind::kOption, "lr", "0.0003"},
          {TermKind::kOption, "num_layers", "2"},
          {TermKind::kVariable, "NCCL_ALGO", "Ring"},
          {TermKind::kData, "data_path", "c0ffee\n", "/data/wiki (contents c0ffee)"}};
}

// Message to ranks with these terms; an empty list is a program that says none.
std::string told(const std::vector<std::vector<Term>>& ranks) {
  std::vector<std::string> digests;
  std::map<std::string, std::vector<Term>> terms;
  for (const std::vector<Term>& own : ranks) {
    digests.push_back(own.empty() ? "" : digest_of(own));
    if (!own.empty()) terms[digests.back()] = own;
  }
  return difference_text(digests, terms);
}

// The usual terms on eight ranks, after `change` to those of the ranks in `which`.
template <typename Change>
std::string told_eight(const std::vector<size_t>& which, const Change& change) {
  std::vector<std::vector<Term>> ranks(8, usual_terms());
  for (const size_t rank : which) change(ranks[rank], rank);
  return told(ranks);
}

TEST(MeetingTerms, OneRankOfEightIsNamedWithBothValues) {
  struct Row {
    size_t term;
    const char* value;
    const char* expected;
  };
  const Row rows[] = {{0, "feedbead",
                       "have different programs\n"
                       "commit: 0123456789ab on ranks 0-4, 6-7, feedbead on rank 5\n"
                       "  start the same command of the same build of the program on all machines"},
                      {1, "0.001",
                       "have different options\n"
                       "lr: 0.0003 on ranks 0-4, 6-7, 0.001 on rank 5\n"
                       "  use one command line and one configuration on all ranks"},
                      {3, "Tree",
                       "have different environment variables\n"
                       "NCCL_ALGO: Ring on ranks 0-4, 6-7, Tree on rank 5\n"
                       "  set the variables alike for all ranks, or on none"},
                      {4, "bead\n",
                       "have different data\n"
                       "data_path: /data/wiki (contents c0ffee) on ranks 0-4, 6-7, other on rank 5\n"
                       "  copy the files to the other machines again, or name one shared folder"}};
  for (const Row& row : rows) {
    EXPECT_EQ(told_eight({5},
                         [&](std::vector<Term>& terms, size_t) {
                           terms[row.term].value = row.value;
                           if (!terms[row.term].shown.empty()) terms[row.term].shown = "other";
                         }),
              std::string("the ranks of this run ") + row.expected);
  }
}

TEST(MeetingTerms, WhatOnlySomeRanksHaveIsMissingOnTheOthers) {
  EXPECT_EQ(told_eight({1, 3, 5, 7}, [](std::vector<Term>& terms, size_t) { terms.erase(terms.begin() + 3); }),
            "the ranks of this run have different environment variables\n"
            "NCCL_ALGO: Ring on rank 0 and 3 others, not set on rank 1 and 3 others\n"
            "  set the variables alike for all ranks, or on none");
}

TEST(MeetingTerms, ManyValuesAndManyNamesAreCounted) {
  const std::string values = told_eight(
      {1, 2, 3, 4, 5, 6, 7}, [](std::vector<Term>& terms, size_t rank) { terms[1].value = std::to_string(rank); });
  EXPECT_NE(values.find("\nlr: 0.0003 on rank 0, 1 on rank 1, 2 on rank 2, 3 on rank 3, and 4 more values\n"),
            std::string::npos)
      << values;
  std::vector<std::vector<Term>> ranks(2);
  for (int i = 0; i < 30; ++i) {
    for (size_t rank = 0; rank < 2; ++rank) {
      ranks[rank].push_back({TermKind::kOption, fmt::format("option_{}", i), std::to_string(rank)});
    }
  }
  const std::string names = told(ranks);
  EXPECT_NE(names.find("option_11: 0 on rank 0, 1 on rank 1\n  and 18 more\n  use one"), std::string::npos) << names;
  EXPECT_EQ(names.find("option_12"), std::string::npos);
}

TEST(MeetingTerms, LongValuesAreShownWhereTheyDiffer) {
  std::vector<std::vector<Term>> ranks(2, usual_terms());
  ranks[0][1].value = std::string(200, 'a') + "left" + std::string(200, 'c');
  ranks[1][1].value = std::string(200, 'a') + "right" + std::string(200, 'c');
  const std::string text = told(ranks);
  EXPECT_NE(text.find("lr: …" + std::string(20, 'a') + "left"), std::string::npos) << text;
  EXPECT_NE(text.find("…" + std::string(20, 'a') + "right"), std::string::npos) << text;
  EXPECT_LT(text.size(), 400U);
}

TEST(MeetingTerms, AnOlderProgramIsNamed) {
  EXPECT_EQ(told({usual_terms(), {}, usual_terms()}),
            "the ranks of this run have different programs\n"
            "program: an older one, which does not compare, on rank 1\n"
            "  start the same command of the same build of the program on all machines");
}

TEST(MeetingTerms, WherePathsAreDoesNotCount) {
  std::vector<Term> elsewhere = usual_terms();
  elsewhere[4].shown = "/mnt/wiki (contents c0ffee)";
  EXPECT_EQ(digest_of(elsewhere), digest_of(usual_terms()));
  elsewhere[4].value = "bead\n";
  EXPECT_NE(digest_of(elsewhere), digest_of(usual_terms()));
}

TEST(MeetingTerms, ATextForTheStoreIsReadBack) {
  const std::vector<Term> read = unpack_terms(pack_terms(usual_terms()));
  EXPECT_EQ(pack_terms(read), pack_terms(usual_terms()));
  EXPECT_EQ(read.size(), usual_terms().size());
  EXPECT_EQ(unpack_terms("9what a newer program says").size(), 0U);  // of a kind that is not known
}

}  // namespace
}  // namespace megalith
