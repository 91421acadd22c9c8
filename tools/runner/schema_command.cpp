#include "runner/schema_command.h"

#include <iterator>

#include "runner/output_file.h"

namespace kvrope::regress {
namespace {

const unsigned char kSchema[] = {
#include "runner/case_file_schema.inc"
};

}  // namespace

const std::string& case_file_schema() {
  static const std::string schema(std::begin(kSchema), std::end(kSchema));
  return schema;
}

void add_schema_command(CLI::App& app, const std::vector<std::string>&, std::function<int()>& chosen) {
  CLI::App& command = *app.add_subcommand("schema", "Print the JSON Schema of case files");
  command.callback([&chosen] {
    chosen = [] {
      OutputFile("-").write(case_file_schema());
      return 0;
    };
  });
}

}  // namespace kvrope::regress
