// Rows by Arrow's C++ library; see arrow_plugin.h. Built against the Arrow in the pyarrow wheel.
#include "data/arrow_plugin.h"

#include <arrow/api.h>
#include <arrow/csv/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <arrow/util/compression.h>
#include <parquet/arrow/reader.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/arrow_json.h"
#include "data/csv_watch.h"

namespace {

namespace json = megalith::arrow_json;

constexpr int64_t kRowsAtOnce = 256;  // documents may be long
constexpr int64_t kPicturesAtOnce = 16;
constexpr int64_t kBatchBytes = 16 << 20;  // of a batch's rows, if the file tells their length
constexpr size_t kLinesAtOnce = 1 << 20;
constexpr int32_t kLongestCsvRow = 16 << 20;

// A user's mistake, and its remedy.
struct RowsError : std::runtime_error {
  RowsError(const std::string& message, std::string advice) : std::runtime_error(message), remedy(std::move(advice)) {}
  std::string remedy;
};

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
T value_of(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueOrDie();
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Batches of a file of any format; they may have more columns than asked for.
struct Batches {
  std::shared_ptr<arrow::io::RandomAccessFile> file;
  int64_t file_bytes = 0;

  virtual ~Batches() = default;
  virtual std::shared_ptr<arrow::RecordBatch> next() = 0;  // null at the end
  virtual int64_t taken() { return value_of(file->Tell()); }

 protected:
  // Bytes read, estimated where the position is unknown: all parts count equally.
  int64_t share(int64_t part, int64_t parts) const {
    if (parts == 0) return file_bytes;
    return static_cast<int64_t>(static_cast<double>(file_bytes) * static_cast<double>(part) /
                                static_cast<double>(parts));
  }
};

void check_columns(const arrow::Schema& schema, const std::vector<std::string>& columns) {
  for (const std::string& column : columns) {
    const std::shared_ptr<arrow::Field> field = schema.GetFieldByName(column);
    if (field == nullptr) {
      throw RowsError("there is no column '" + column + "', but: " + joined(schema.field_names()),
                      "name the column that holds the text: --json_keys NAME");
    }
    if (!json::is_text(*field->type())) {
      throw RowsError("column '" + column + "' holds " + field->type()->ToString() + ", not text",
                      "name a column that holds text: --json_keys NAME; there are: " + joined(schema.field_names()));
    }
  }
}

class ParquetBatches final : public Batches {
 public:
  ParquetBatches(std::shared_ptr<arrow::io::RandomAccessFile> opened, const std::vector<std::string>& columns,
                 int64_t rows_at_once) {
    file = std::move(opened);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(file));
    parquet::ArrowReaderProperties properties = parquet::default_arrow_reader_properties();
    properties.set_use_threads(false);  // tokenising needs the processors
    builder.properties(properties);
    reader_ = value_of(builder.Build());
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema));
    check_columns(*schema, columns);
    const auto metadata = reader_->parquet_reader()->metadata();
    num_rows_ = metadata->num_rows();
    std::vector<int> leaves, groups;
    for (const std::string& column : columns) leaves.push_back(metadata->schema()->ColumnIndex(column));
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      groups.push_back(group);
      const auto rows = metadata->RowGroup(group);
      const int64_t row_bytes = std::max<int64_t>(rows->total_byte_size() / std::max<int64_t>(rows->num_rows(), 1), 1);
      rows_at_once = std::clamp<int64_t>(kBatchBytes / row_bytes, 1, rows_at_once);
    }
    reader_->set_batch_size(rows_at_once);
    batches_ = value_of(columns.empty() ? reader_->GetRecordBatchReader(groups)
                                        : reader_->GetRecordBatchReader(groups, leaves));
  }
  std::shared_ptr<arrow::RecordBatch> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    check(batches_->ReadNext(&batch));
    if (batch != nullptr) row_ += batch->num_rows();
    return batch;
  }
  int64_t taken() override { return share(row_, num_rows_); }

 private:
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int64_t row_ = 0, num_rows_ = 0;
};

class StreamBatches final : public Batches {
 public:
  StreamBatches(std::shared_ptr<arrow::io::RandomAccessFile> opened, const std::vector<std::string>& columns) {
    file = std::move(opened);
    reader_ = value_of(arrow::ipc::RecordBatchStreamReader::Open(file));
    check_columns(*reader_->schema(), columns);
  }
  std::shared_ptr<arrow::RecordBatch> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    check(reader_->ReadNext(&batch));
    return batch;
  }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader_;
};

class FileBatches final : public Batches {
 public:
  FileBatches(std::shared_ptr<arrow::io::RandomAccessFile> opened, const std::vector<std::string>& columns) {
    file = std::move(opened);
    reader_ = value_of(arrow::ipc::RecordBatchFileReader::Open(file));
    check_columns(*reader_->schema(), columns);
  }
  std::shared_ptr<arrow::RecordBatch> next() override {
    if (batch_ == reader_->num_record_batches()) return nullptr;
    return value_of(reader_->ReadRecordBatch(batch_++));
  }
  int64_t taken() override { return share(batch_, reader_->num_record_batches()); }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
  int batch_ = 0;
};

class CsvBatches final : public Batches {
 public:
  CsvBatches(std::shared_ptr<arrow::io::RandomAccessFile> opened, const std::string& path, char delimiter,
             const std::vector<std::string>& columns) {
    file = std::move(opened);
    auto read = arrow::csv::ReadOptions::Defaults();
    read.use_threads = false;
    read.block_size = kLongestCsvRow;
    auto parse = arrow::csv::ParseOptions::Defaults();
    parse.delimiter = delimiter;
    parse.newlines_in_values = true;
    auto convert = arrow::csv::ConvertOptions::Defaults();
    // Requested columns are text, whatever their values look like.
    for (const std::string& column : columns) convert.column_types[column] = arrow::utf8();
    convert.strings_can_be_null = false;
    {
      const auto header = make_reader(plain(path, value_of(arrow::io::ReadableFile::Open(path))), read, parse, convert);
      check_columns(*header->schema(), columns);
      if (columns.empty()) {
        for (const std::string& name : header->schema()->field_names()) convert.column_types[name] = arrow::utf8();
      }
    }
    convert.include_columns = columns;  // none: all
    reader_ = make_reader(plain(path, file), read, parse, convert);
  }
  std::shared_ptr<arrow::RecordBatch> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    explain(reader_->ReadNext(&batch));
    return batch;
  }

 private:
  std::shared_ptr<arrow::csv::StreamingReader> make_reader(std::shared_ptr<arrow::io::InputStream> stream,
                                                           const arrow::csv::ReadOptions& read,
                                                           const arrow::csv::ParseOptions& parse,
                                                           const arrow::csv::ConvertOptions& convert) {
    watch_ = std::make_shared<megalith::CsvWatch>(std::move(stream), parse.delimiter, kLongestCsvRow);
    auto reader = arrow::csv::StreamingReader::Make(arrow::io::default_io_context(), watch_, read, parse, convert);
    explain(reader.status());
    return std::move(reader).ValueOrDie();
  }

  // Arrow does not tell the line of an error.
  void explain(const arrow::Status& status) const {
    if (status.ok()) return;
    const std::string fault = watch_->fault();
    if (!fault.empty())
      throw RowsError(fault, "close the quote (one within a text is written twice), or divide the row");
    check(status);
  }

  // The table's bytes, decompressed as its name says.
  static std::shared_ptr<arrow::io::InputStream> plain(const std::string& path,
                                                       std::shared_ptr<arrow::io::InputStream> stream) {
    for (const auto& [ending, kind] : {std::pair{".gz", arrow::Compression::GZIP},
                                       {".zst", arrow::Compression::ZSTD},
                                       {".bz2", arrow::Compression::BZ2}}) {
      if (!lower(path).ends_with(ending)) continue;
      const std::shared_ptr<arrow::util::Codec> codec = value_of(arrow::util::Codec::Create(kind));
      auto decompressed = value_of(arrow::io::CompressedInputStream::Make(codec.get(), stream));
      // The codec must outlive the stream.
      return {decompressed.get(), [decompressed, codec](arrow::io::InputStream*) {}};
    }
    return stream;
  }

  std::shared_ptr<megalith::CsvWatch> watch_;
  std::shared_ptr<arrow::csv::StreamingReader> reader_;
};

std::unique_ptr<Batches> open_batches(const std::string& path, const std::vector<std::string>& columns,
                                      bool with_bytes) {
  const std::shared_ptr<arrow::io::ReadableFile> file = value_of(arrow::io::ReadableFile::Open(path));
  const std::shared_ptr<arrow::Buffer> head_bytes = value_of(file->ReadAt(0, 6));
  const std::string_view head(reinterpret_cast<const char*>(head_bytes->data()),
                              static_cast<size_t>(head_bytes->size()));
  check(file->Seek(0));
  std::unique_ptr<Batches> batches;
  std::string name = lower(path);
  for (const char* ending : {".gz", ".zst", ".bz2"}) {
    if (name.ends_with(ending)) name.resize(name.rfind('.'));
  }
  if (head.starts_with("PAR1")) {
    batches = std::make_unique<ParquetBatches>(file, columns, with_bytes ? kPicturesAtOnce : kRowsAtOnce);
  } else if (head.starts_with("ARROW1")) {
    batches = std::make_unique<FileBatches>(file, columns);
  } else if (name.ends_with(".csv") || name.ends_with(".tsv")) {
    batches = std::make_unique<CsvBatches>(file, path, name.ends_with(".csv") ? ',' : '\t', columns);
  } else {
    batches = std::make_unique<StreamBatches>(file, columns);
  }
  batches->file_bytes = value_of(file->GetSize());
  return batches;
}

// Appends rows' texts of these columns, from `row` on until `lines` is full.
void append_texts(const arrow::RecordBatch& batch, const std::vector<std::string>& columns, int64_t& row,
                  std::string& lines) {
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const std::string& column : columns) arrays.push_back(batch.GetColumnByName(column));
  for (; row < batch.num_rows() && lines.size() < kLinesAtOnce; ++row) {
    for (size_t column = 0; column < arrays.size(); ++column) {
      lines += column == 0 ? "{" : ", ";
      json::append_text(lines, columns[column]);
      lines += ": ";
      json::append_text(lines, json::text_at(*arrays[column], row));
    }
    lines += "}\n";
  }
}

// Appends rows with every value that JSON can hold.
void append_all(const arrow::RecordBatch& batch, bool with_bytes, int64_t& row, std::string& lines) {
  for (; row < batch.num_rows() && lines.size() < kLinesAtOnce; ++row) {
    json::append_object(
        lines, batch.num_columns(), row, with_bytes,
        [&](int i) -> std::string_view { return batch.schema()->field(i)->name(); },
        [&](int i) { return batch.column(i); });
    lines += '\n';
  }
}

void say(const std::exception& error, const std::string& remedy, MegalithRowsError& out) {
  std::snprintf(out.message, sizeof(out.message), "%s", error.what());
  std::snprintf(out.remedy, sizeof(out.remedy), "%s", remedy.c_str());
}

template <typename Body>
auto guarded(MegalithRowsError* error, const Body& body, decltype(body()) failed) {
  try {
    return body();
  } catch (const RowsError& raised) {
    say(raised, raised.remedy, *error);
  } catch (const std::exception& raised) {
    say(raised, "see that it is whole, and of the kind that its name says", *error);
  }
  return failed;
}

}  // namespace

struct MegalithRows {
  std::vector<std::string> columns;
  bool with_bytes = false;
  std::unique_ptr<Batches> batches;
  std::shared_ptr<arrow::RecordBatch> batch;  // rows from `row` on are still to give
  int64_t row = 0;
  std::string lines;
};

MegalithRows* megalith_rows_open(const char* path, const char* const* columns, size_t num_columns, int with_bytes,
                                 MegalithRowsError* error) {
  return guarded(
      error,
      [&] {
        auto rows = std::make_unique<MegalithRows>();
        rows->columns.assign(columns, columns + num_columns);
        rows->with_bytes = with_bytes != 0;
        rows->batches = open_batches(path, rows->columns, rows->with_bytes);
        return rows.release();
      },
      static_cast<MegalithRows*>(nullptr));
}

int megalith_rows_next(MegalithRows* rows, const char** data, size_t* size, int64_t* input_bytes,
                       MegalithRowsError* error) {
  return guarded(
      error,
      [&] {
        std::string().swap(rows->lines);
        while (rows->batch == nullptr || rows->row == rows->batch->num_rows()) {
          rows->batch = nullptr;  // freed before the next is read
          rows->batch = rows->batches->next();
          rows->row = 0;
          *input_bytes = rows->batch == nullptr ? rows->batches->file_bytes : rows->batches->taken();
          if (rows->batch == nullptr) return 0;
        }
        if (rows->columns.empty()) {
          append_all(*rows->batch, rows->with_bytes, rows->row, rows->lines);
        } else {
          append_texts(*rows->batch, rows->columns, rows->row, rows->lines);
        }
        *data = rows->lines.data();
        *size = rows->lines.size();
        return 1;
      },
      -1);
}

void megalith_rows_close(MegalithRows* rows) { delete rows; }
