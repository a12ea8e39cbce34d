"""The PTX language: a fast scanner that splits modules, a grammar for the parts of interest, and a syntax tree.

Scanner and grammar share the tokens of tokens.py. The interface for stages:

    scan.scan_module(data, name) -> Module     the items of a module (functions, variables, directives, sections) with
                                               their byte spans, by regular expressions: 35 MB in half a second
    scan.Module.statements(function)           the statements of a function's body: kind, head, guard, start, end
    scan.Module.version, .target               of a module, (8, 5) and 90
    prune.prune(module, [entry, ...]) -> bytes the module with only what these entries need
    parse.parse_statements(text) -> [node]     the grammar (grammar.lark) over some statements
    parse.parse_item(module, item) -> node     ... over one item of a module: a declaration, a function
    parse.parse_module(data, name) -> Module   ... over everything (1 MB/s)
    quick.parse_instruction(text) -> node      an instruction; common shapes are parsed by hand, six times as fast
    quick.parse_params(module, function)       the parameters of a function, the same way
    params.layout(params) -> [Param]           where a kernel's parameters are, in bytes
    registers.Registers(module, declarations)  the type of each register of a function
    types                                      sizes, special registers, the types of an instruction's operands
    tree                                       the nodes; str(node) is PTX again, token for token
    names.parse_names(data) -> Contents        the names of a module's functions alone: a gigabyte in a second

PTX is read as latin-1, one character per byte, so every offset in a Module's text is a byte offset in its data. The
scanner doesn't check statements: any text that begins like an instruction is one, up to the semicolon. It accepts all
opcodes and modifiers, because new ones appear twice a year; ptxas checks them.
"""
