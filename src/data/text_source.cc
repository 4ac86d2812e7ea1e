// Text from files, plain or compressed; see text_source.h. Sources: zlib.h (inflate with automatic header), lzma.h
// (lzma_stream_decoder), zstd.h (ZSTD_decompressStream).
#include "data/text_source.h"

#include <fmt/format.h>
#include <lzma.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "core/system_call.h"

namespace megalith {
namespace {

constexpr size_t kInputBytes = size_t{256} * 1024;
constexpr uint64_t kMostDecoderBytes = uint64_t{4} << 30;  // limit on the decoder of a hostile .xz

class RawInput {
 public:
  RawInput(int descriptor, std::string name) : fd_(descriptor), name_(std::move(name)), buffer_(kInputBytes) {}
  ~RawInput() {
    if (fd_ > STDIN_FILENO) close_descriptor(fd_);
  }
  RawInput(const RawInput&) = delete;
  RawInput& operator=(const RawInput&) = delete;

  // Buffered bytes not yet taken; reads more when there are none. Empty at the end.
  std::string_view peek() {
    if (begin_ == end_) fill();
    return {buffer_.data() + begin_, end_ - begin_};
  }
  // As peek(), with at least `count` bytes unless the input ends sooner.
  std::string_view peek(size_t count) {
    while (end_ - begin_ < count && fill()) {
    }
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void take(size_t count) {
    begin_ += count;
    num_taken_ += static_cast<int64_t>(count);
  }
  bool try_seek(int64_t offset) {
    if (::lseek(fd_, 0, SEEK_CUR) < 0 || ::lseek(fd_, 0, SEEK_END) < offset) return false;
    if (::lseek(fd_, offset, SEEK_SET) != offset) return false;
    begin_ = end_ = 0;
    num_taken_ = offset;
    return true;
  }
  int64_t num_taken() const { return num_taken_; }
  const std::string& name() const { return name_; }
  [[noreturn]] void fail(std::string_view kind, std::string_view reason) const {
    throw UserError(fmt::format("{}: the {} data are damaged near byte {} ({})", name_, kind, num_taken_, reason),
                    "copy or fetch the file again; 'megalith prepare' then goes on where it stopped");
  }

 private:
  bool fill() {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    if (end_ == buffer_.size()) return false;
    const ssize_t count = retry_interrupted([&] { return ::read(fd_, buffer_.data() + end_, buffer_.size() - end_); });
    if (count < 0) {
      throw UserError(fmt::format("cannot read {} beyond byte {}: {}", name_,
                                  num_taken_ + static_cast<int64_t>(end_ - begin_), system_error_text(errno)));
    }
    end_ += static_cast<size_t>(count);
    return count > 0;
  }

  int fd_;
  std::string name_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t num_taken_ = 0;
};

class PlainSource final : public TextSource {
 public:
  explicit PlainSource(std::unique_ptr<RawInput> input) : input_(std::move(input)) {}
  size_t read(std::span<char> out) override {
    const std::string_view ready = input_->peek();
    const size_t count = std::min(ready.size(), out.size());
    std::copy_n(ready.data(), count, out.data());
    input_->take(count);
    return count;
  }
  int64_t input_bytes() const override { return input_->num_taken(); }
  bool try_seek(int64_t offset) override { return input_->try_seek(offset); }

 private:
  std::unique_ptr<RawInput> input_;
};

// Common to the three formats: a decoder that takes and gives bytes until the input ends.
class DecodedSource : public TextSource {
 public:
  DecodedSource(std::unique_ptr<RawInput> input, std::string_view kind) : input_(std::move(input)), kind_(kind) {}
  int64_t input_bytes() const override { return input_->num_taken(); }

  size_t read(std::span<char> out) override {
    size_t given = 0;
    while (given == 0 && !out.empty()) {
      const std::string_view ready = input_->peek();
      if (ready.empty() && is_between_streams_) return 0;
      const Step step = decode(ready, out);
      input_->take(step.taken);
      given = step.given;
      is_between_streams_ = step.is_stream_end;
      if (ready.empty() && given == 0 && !step.is_stream_end) {
        input_->fail(kind_, "the file ends in the middle of its data");
      }
      if (step.taken == 0 && given == 0 && !ready.empty() && !step.is_stream_end) {
        input_->fail(kind_, "nothing can be made of them");
      }
    }
    return given;
  }

 protected:
  struct Step {
    size_t taken = 0, given = 0;
    bool is_stream_end = false;  // another stream may follow, or the end
  };
  // `ready` is empty at the end of the input.
  virtual Step decode(std::string_view ready, std::span<char> out) = 0;
  [[noreturn]] void fail(std::string_view reason) const { input_->fail(kind_, reason); }

 private:
  std::unique_ptr<RawInput> input_;
  std::string_view kind_;
  bool is_between_streams_ = false;
};

class GzipSource final : public DecodedSource {
 public:
  explicit GzipSource(std::unique_ptr<RawInput> input) : DecodedSource(std::move(input), "gzip") {
    constexpr int kGzipWindow = 15 + 16;  // 15: the largest window; 16: accept only gzip's header
    MEGALITH_CHECK(::inflateInit2(&stream_, kGzipWindow) == Z_OK, "inflateInit2");
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }

 protected:
  Step decode(std::string_view ready, std::span<char> out) override {
    if (is_ended_) {
      // Tapes and some tools leave zero padding after the last member.
      if (!ready.empty() && ready[0] == '\0') return {1, 0, true};
      ::inflateReset(&stream_);
      is_ended_ = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(ready.data()));
    stream_.avail_in = static_cast<uInt>(ready.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(std::min(out.size(), kInputBytes));
    const auto room = stream_.avail_out;
    const int result = ::inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      fail(stream_.msg != nullptr ? stream_.msg : "not a gzip stream");
    }
    is_ended_ = result == Z_STREAM_END;
    return {ready.size() - stream_.avail_in, room - stream_.avail_out, is_ended_};
  }

 private:
  z_stream stream_{};
  bool is_ended_ = false;
};

class XzSource final : public DecodedSource {
 public:
  explicit XzSource(std::unique_ptr<RawInput> input) : DecodedSource(std::move(input), "xz") {
    MEGALITH_CHECK(::lzma_stream_decoder(&stream_, kMostDecoderBytes, LZMA_CONCATENATED) == LZMA_OK,
                   "lzma_stream_decoder");
  }
  ~XzSource() override { ::lzma_end(&stream_); }

 protected:
  Step decode(std::string_view ready, std::span<char> out) override {
    if (is_ended_) return {ready.size(), 0, true};
    stream_.next_in = reinterpret_cast<const uint8_t*>(ready.data());
    stream_.avail_in = ready.size();
    stream_.next_out = reinterpret_cast<uint8_t*>(out.data());
    stream_.avail_out = out.size();
    const lzma_ret result = ::lzma_code(&stream_, ready.empty() ? LZMA_FINISH : LZMA_RUN);
    if (result == LZMA_MEMLIMIT_ERROR) fail("its dictionary takes more than 4 GiB");
    if (result != LZMA_OK && result != LZMA_STREAM_END && result != LZMA_BUF_ERROR) {
      fail(fmt::format("liblzma's error {}", static_cast<int>(result)));
    }
    is_ended_ = result == LZMA_STREAM_END;
    return {ready.size() - stream_.avail_in, out.size() - stream_.avail_out, is_ended_};
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool is_ended_ = false;
};

class ZstdSource final : public DecodedSource {
 public:
  explicit ZstdSource(std::unique_ptr<RawInput> input)
      : DecodedSource(std::move(input), "zstd"), stream_(::ZSTD_createDStream()) {
    MEGALITH_CHECK(stream_ != nullptr, "ZSTD_createDStream");
    // Corpora compressed with --long=31 are common.
    ::ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31);
  }
  ~ZstdSource() override { ::ZSTD_freeDStream(stream_); }

 protected:
  Step decode(std::string_view ready, std::span<char> out) override {
    ZSTD_inBuffer from{ready.data(), ready.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const size_t result = ::ZSTD_decompressStream(stream_, &to, &from);
    if (::ZSTD_isError(result)) fail(::ZSTD_getErrorName(result));
    return {from.pos, to.pos, result == 0};
  }

 private:
  ZSTD_DStream* stream_;
};

bool is_zstd(std::string_view head) {
  if (head.size() < 4) return false;
  const bool is_frame = head.starts_with("\x28\xb5\x2f\xfd");
  const bool is_skippable = (head[0] & '\xf0') == '\x50' && head.substr(1, 3) == "\x2a\x4d\x18";
  return is_frame || is_skippable;
}

}  // namespace

std::unique_ptr<TextSource> open_text(int descriptor, std::string name) {
  auto input = std::make_unique<RawInput>(descriptor, std::move(name));
  const std::string_view head = input->peek(6);
  if (head.starts_with("\x1f\x8b")) return std::make_unique<GzipSource>(std::move(input));
  if (head.starts_with(std::string_view("\xfd"
                                        "7zXZ\0",
                                        6))) {
    return std::make_unique<XzSource>(std::move(input));
  }
  if (is_zstd(head)) return std::make_unique<ZstdSource>(std::move(input));
  if (head.starts_with("BZh")) {
    throw UserError(fmt::format("the input {} is compressed with bzip2, which is not read here", input->name()),
                    "decompress it on the way: bzcat FILE | megalith prepare --input -");
  }
  return std::make_unique<PlainSource>(std::move(input));
}

std::unique_ptr<TextSource> open_text(const std::string& path) {
  if (path == "-") return open_text(STDIN_FILENO, "standard input");
  // Text may come through a named pipe: mkfifo, /dev/stdin, <(…).
  return open_text(InputFile(path, InputKind::kStream).release(), path);
}

std::string_view without_compression_ending(std::string_view path) {
  for (const std::string_view ending : {".gz", ".xz", ".zst"}) {
    if (path.size() > ending.size() && lower_case(path.substr(path.size() - ending.size())) == ending) {
      return path.substr(0, path.size() - ending.size());
    }
  }
  return path;
}

}  // namespace megalith
