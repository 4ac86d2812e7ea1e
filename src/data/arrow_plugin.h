// C interface of libmegalith_arrow.so: rows of Parquet, Arrow and CSV files as JSON lines, read by Arrow's C++ library.
// Loaded only to read such a file, so the program runs without Arrow; C, since the two may come from different
// compilers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct MegalithRows;

// For a person, when a call fails.
struct MegalithRowsError {
  char message[1024];
  char remedy[512];
};

// Opens a file, its format told by its first bytes (Parquet, Arrow's file and stream formats) or its name (.csv, .tsv,
// also compressed: .gz, .zst, .bz2). Gives the named columns, which must hold text; without names, all columns of any
// type. Null: see *error.
//   with_bytes  1: give binary values, which JSON lacks, as base64
MegalithRows* megalith_rows_open(const char* path, const char* const* columns, size_t num_columns, int with_bytes,
                                 MegalithRowsError* error);

// Gives the next rows as lines {"column": "text", …}; null is an empty text. Without named columns values are texts,
// numbers, booleans, lists and objects; nulls and types without JSON are left out. Bytes are valid until the next call.
//   input_bytes  of the file, read so far
// Returns 1; 0 at the end; -1: see *error.
int megalith_rows_next(MegalithRows* rows, const char** data, size_t* size, int64_t* input_bytes,
                       MegalithRowsError* error);

void megalith_rows_close(MegalithRows* rows);
}
