// What the library libmegalith_arrow.so gives: rows of Parquet, Arrow and CSV files as JSON lines, read by Arrow's C++
// library. It is a library of its own, loaded when such a file is read, so that the program starts and runs without
// Arrow. Only C crosses the border: the two may come from different compilers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct MegalithRows;

// A message for a person, where a call fails.
struct MegalithRowsError {
  char message[1024];
  char remedy[512];
};

// Opens a file whose kind its first bytes tell (Parquet, Arrow's file and stream formats), or its name (.csv, .tsv,
// also compressed: .gz, .zst, .bz2). The named columns of each row are given; they hold
// text. Without names all columns are given, whatever they hold. Null: *error says why.
//   with_bytes  1: bytes, which JSON has nothing for, are given as base64
MegalithRows* megalith_rows_open(const char* path, const char* const* columns, size_t num_columns, int with_bytes,
                                 MegalithRowsError* error);

// The next rows, each as a line {"column": "text", …}; a missing value is an empty text. Without named columns a value
// is what JSON has for it: texts, numbers, booleans, lists and objects. What is missing, and what JSON has nothing for,
// is left out. The bytes stay valid until the next call.
//   input_bytes  of the file, taken so far
// 1; 0 at the end; -1: *error says why.
int megalith_rows_next(MegalithRows* rows, const char** data, size_t* size, int64_t* input_bytes,
                       MegalithRowsError* error);

void megalith_rows_close(MegalithRows* rows);
}
