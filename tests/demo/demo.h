// The interface of libdemo.so. Each function runs one kernel on the first GPU and checks the result; if it's
// wrong, it says so on standard error. Only that kernel's fatbin region is loaded.

enum demo_status { DEMO_OK = 0, DEMO_FAILED = 1, DEMO_NO_DRIVER = 4 };

enum demo_status demo_matmul(void);
enum demo_status demo_fill(void);
enum demo_status demo_overrun(void); // its kernel writes past the end of its memory
