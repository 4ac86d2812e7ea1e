// Pictures and the archives that they come in.
#include <cstdio>

#include "core/error.h"
#include "fuzz/target.h"
#include "image/picture.h"
#include "image/png.h"
#include "kinds/flow/tar_reader.h"
#include "support/encoded_pictures.h"

namespace megalith::fuzz {
namespace {

constexpr int64_t kMostPixels = 1 << 20;  // a header of a few bytes can claim any size up to the reader's bound

Target picture_file(const Scratch& /*scratch*/) {
  Picture small = make_picture(9, 5, "a seed");
  for (size_t i = 0; i < small.rgb.size(); ++i) small.rgb[i] = static_cast<uint8_t>(i * 37);
  Target target{"picture",
                {test::as_jpeg(small), encode_png(small), test::as_webp(small)},
                {"\xff\xd8\xff", "\xff\xe1", std::string("Exif\0\0II*\0", 10), std::string("MM\0*", 4), "IHDR", "eXIf",
                 "tRNS", "PLTE", "IEND", "VP8X", "EXIF", "ANIM", "VP8L"},
                {},
                {}};
  target.run = [](std::string_view input) {
    const Picture picture = decode_picture(input, "the picture", kMostPixels);
    require(picture.width > 0 && picture.height > 0 && picture.width * picture.height <= kMostPixels,
            "a picture has a size within its bound");
    require(picture.rgb.size() == static_cast<size_t>(picture.width * picture.height * 3), "and all of its pixels");
  };
  return target;
}

// A file of an archive: its header and its content in blocks of 512 bytes.
std::string in_tar(const std::string& name, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 8, std::string("0000644\0", 8));
  char size[13];
  std::snprintf(size, sizeof(size), "%011o", static_cast<unsigned>(content.size()));
  header.replace(124, 11, size);
  header[156] = type;
  header.replace(257, 8, std::string("ustar\00000", 8));
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  char checksum[8];
  std::snprintf(checksum, sizeof(checksum), "%06o", sum);
  header.replace(148, 7, checksum, 7);
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

// The checksum of a header is made right again, or no damage after it would be looked at.
std::string with_checksums(std::string archive) {
  for (size_t at = 0; at + 512 <= archive.size(); at += 512) {
    if (archive.compare(at + 257, 5, "ustar") != 0) continue;
    archive.replace(at + 148, 8, 8, ' ');
    unsigned sum = 0;
    for (size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(archive[i]);
    char checksum[8];
    std::snprintf(checksum, sizeof(checksum), "%06o", sum);
    archive.replace(at + 148, 7, checksum, 7);
  }
  return archive;
}

Target tar_archive(const Scratch& scratch) {
  const std::string end(1024, '\0');
  const std::string records = "30 path=a/long/name/of/0.jpg\n\n";
  Target target{"tar",
                {in_tar("0.jpg", "picture") + in_tar("0.txt", "a caption") + end,
                 in_tar("././@LongLink", std::string("a/long/name.jpg\0", 16), 'L') + in_tar("a", "x") + end,
                 in_tar("PaxHeader", records, 'x') + in_tar("b", std::string(600, 'y')) + end,
                 in_tar("folder/", "", '5') + in_tar("link", "", '2') + end},
                {"ustar", "path=", "size=", "././@LongLink", "77777777777", "\x80"},
                {},
                {}};
  target.run = [&scratch](std::string_view input) {
    constexpr int64_t kMostBytes = 1 << 20;
    TarReader reader(open_text(scratch.put("t.tar", with_checksums(std::string(input)))), "the archive", kMostBytes);
    int64_t total = 0;
    while (const std::optional<TarFile> file = reader.next()) {
      require(static_cast<int64_t>(file->bytes.size()) <= kMostBytes, "a file is within its bound");
      if ((total += static_cast<int64_t>(file->bytes.size()) + 512) > 4'000'000) break;
    }
  };
  return target;
}

}  // namespace

std::vector<Target> picture_targets(const Scratch& scratch) { return {picture_file(scratch), tar_archive(scratch)}; }

}  // namespace megalith::fuzz
