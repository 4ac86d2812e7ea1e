// Signature Version 4 of AWS. Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)".
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "storage/s3_settings.h"

namespace megalith {

struct S3Call {
  std::string method, host, path;            // path percent-encoded, from "/"
  std::map<std::string, std::string> query;  // plain
  std::map<std::string, std::string> headers;  // lower-case names; all are signed, besides host
};

// "a=1&b%20c=": names in order, encoded.
std::string encoded_query(const std::map<std::string, std::string>& query);

// The value of the header Authorization.
//   time       "20130524T000000Z", also the header x-amz-date
//   body_hash  hexadecimal SHA-256, also the header x-amz-content-sha256
std::string s3_signature(const S3Call& call, const S3Settings& settings, std::string_view time,
                         std::string_view body_hash);

}  // namespace megalith
