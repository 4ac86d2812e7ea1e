// TensorBoard's event files: protocol-buffer messages, each in a TFRecord frame.
//
//   frame    length (8 bytes, little endian), masked CRC-32C of those 8 bytes, message, masked CRC-32C of the message
//   Event    { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary  { repeated Value value = 1; }
//   Value    { string tag = 1; float simple_value = 2; Image image = 4; TensorProto tensor = 8;
//              SummaryMetadata metadata = 9; }
//   Image    { int32 height = 1; int32 width = 2; int32 colorspace = 3; bytes encoded_image_string = 4; }
//   SummaryMetadata  { PluginData plugin_data = 1; }  PluginData { string plugin_name = 1; }
//   TensorProto      { DataType dtype = 1; TensorShapeProto shape = 2; repeated bytes string_val = 8; }
//   TensorShapeProto { repeated Dim dim = 2; }  Dim { int64 size = 1; }
//
// Source: tensorboard/compat/proto/{event,summary,tensor,tensor_shape}.proto, tensorflow/core/lib/io/record_writer.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

// Castagnoli (RFC 3720, B.4); "123456789" gives 0xe3069283.
uint32_t crc32c(std::string_view bytes);

// TFRecord's: rotated and offset, for data that contains checksums.
uint32_t masked_crc32c(std::string_view bytes);

std::string tfrecord(std::string_view message);

// Begins a file.
std::string version_event(double wall_time_s);

// Rounds to fp32.
std::string scalar_event(double wall_time_s, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

// torch.utils.tensorboard's SummaryWriter.add_text(tag, text).
std::string text_event(double wall_time_s, int64_t step, std::string_view tag, std::string_view text);

// SummaryWriter.add_image(tag, picture), RGB.
//   png  file content of width x height pixels
std::string image_event(double wall_time_s, int64_t step, std::string_view tag, std::string_view png, int64_t height,
                        int64_t width);

}  // namespace megalith
