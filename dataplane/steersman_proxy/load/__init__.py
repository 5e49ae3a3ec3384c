"""How much work this proxy has given to each engine. No I/O."""
